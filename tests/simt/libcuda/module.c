/* module.c - modules: the PTX must look like Hearth's; its kernels are those that this library was linked
 * with, which stand in for a cubin's too. */
#include "calls.h"
#include "device/simt.h"
#include "ptx/ptx_text.h"

#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_SHARED 49152 /* without cuFuncSetAttribute() */
#define SM_THREADS     2048
#define SM_BLOCKS      32
#define BLOCK_SHARED   1024 /* what the system takes of each block's */
#define SM_RESIDENT    2    /* blocks of a grid that was not launched as a whole: few threads, few clocks */
#define MAX_PTX        804  /* 8.4, the newest that CUDA 12.4 reads */

static void write_log(unsigned n_options, const int *options, void **values, const char *words)
{
    char *log = NULL;
    size_t size = 0;
    for (unsigned i = 0; i < n_options; i++) {
        if (options[i] == CUDA_JIT_ERROR_LOG)
            log = values[i];
        if (options[i] == CUDA_JIT_ERROR_LOG_SIZE)
            size = (size_t)(uintptr_t)values[i];
    }
    if (log && size)
        snprintf(log, size, "%s", words);
}

/* 0 and the generation that the text is for, or why it is not taken. */
static int read_ptx(const char *text, uint32_t *sm, char *words, size_t size)
{
    const char *version = strstr(text, "\n.version "), *target = strstr(text, "\n.target sm_");
    unsigned major = 0, minor = 0;
    *sm = target ? (uint32_t)atoi(target + strlen("\n.target sm_")) : 0;
    if (!version || sscanf(version, "\n.version %u.%u", &major, &minor) != 2 || !strstr(text, ".entry ") ||
        *sm < 80) {
        snprintf(words, size, "ptxas application ptx input, line 1; fatal   : not the PTX of a kernel");
        return CUDA_INVALID_PTX;
    }
    if (major * 100 + minor > MAX_PTX) {
        snprintf(words, size, "ptxas application ptx input; fatal   : Unsupported .version %u.%u", major,
                 minor);
        return CUDA_UNSUPPORTED_PTX;
    }
    if (*sm > emulated.settings.sm) {
        snprintf(words, size, "ptxas fatal   : sm_%u is later than the device", *sm);
        return RESULT_NO_BINARY;
    }
    if (ptx_text_linked && !ptx_text_linked(text)) {
        snprintf(words, size, "ptxas fatal   : this text was not translated; build the driver again");
        return CUDA_INVALID_PTX;
    }
    return 0;
}

/* Reads a cubin: *sm is the generation whose kernels stand in for its machine code, and *text lists its
 * entries as PTX does, from the names of its sections; the caller frees it. Without SIMT_CUBINS the device
 * takes none, as a driver that is older than ptxas. */
static int read_cubin(const char *image, uint32_t *sm, char **text)
{
    Elf64_Ehdr elf;
    memcpy(&elf, image, sizeof elf);
    /* The capability has another place in e_flags since CUDA 13. */
    uint32_t made_for = elf.e_flags >> (elf.e_ident[EI_ABIVERSION] >= 8 ? 8 : 0) & 0xff;
    if (elf.e_ident[EI_CLASS] != ELFCLASS64 || elf.e_machine != EM_CUDA ||
        elf.e_shentsize != sizeof(Elf64_Shdr))
        return RESULT_INVALID_IMAGE;
    if (!emulated.settings.takes_cubins || made_for > emulated.settings.sm ||
        made_for / 10 != emulated.settings.sm / 10)
        return RESULT_NO_BINARY;
    const Elf64_Shdr *sections = (const void *)(image + elf.e_shoff);
    const char *names = image + sections[elf.e_shstrndx].sh_offset;
    size_t size = 0;
    FILE *f = open_memstream(text, &size);
    if (!f)
        return CUDA_OUT_OF_MEMORY;
    for (unsigned i = 0; i < elf.e_shnum; i++)
        if (strncmp(names + sections[i].sh_name, ".text.", strlen(".text.")) == 0)
            fprintf(f, ".entry %s\n", names + sections[i].sh_name + strlen(".text."));
    *sm = made_for >= 90 ? 90 : 80;
    return fclose(f) == 0 ? CUDA_SUCCESS : CUDA_OUT_OF_MEMORY;
}

static int read_image(const char *image, uint32_t *sm, char **text, char *words, size_t size)
{
    if (memcmp(image, ELFMAG, SELFMAG) == 0)
        return read_cubin(image, sm, text);
    int result = fault_due(FAULT_JIT);
    if (!result)
        result = read_ptx(image, sm, words, size);
    if (result)
        return result;
    *text = strdup(image);
    return *text ? CUDA_SUCCESS : CUDA_OUT_OF_MEMORY;
}

int cuModuleLoadDataEx(void **module, const void *image, unsigned n_options, int *options, void **values)
{
    char words[200] = "ptxas fatal   : as SIMT_FAULT asks for", *text = NULL;
    uint32_t sm = 0;
    int result = call_begin_alone("cuModuleLoadDataEx");
    if (result)
        return result;
    result = read_image(image, &sm, &text, words, sizeof words);
    if (result) {
        write_log(n_options, options, values, words);
        return call_end(result);
    }
    struct module *m = object_open(OBJECT_MODULE, sizeof *m);
    if (!m) {
        free(text);
        return call_end(CUDA_OUT_OF_MEMORY);
    }
    m->text = text;
    m->sm = sm;
    *module = m;
    return call_end(CUDA_SUCCESS);
}

int cuModuleUnload(void *module)
{
    int result = call_begin_alone("cuModuleUnload");
    if (result)
        return result;
    struct module *m = object_check(module, OBJECT_MODULE);
    if (!m)
        return call_end(RESULT_INVALID_HANDLE);
    for (struct object *o = emulated.objects; o;) {
        struct object *next = o->next;
        if (o->kind == OBJECT_FUNCTION && ((struct function *)o)->module == m)
            object_close(o);
        o = next;
    }
    object_close(&m->object);
    return call_end(CUDA_SUCCESS);
}

static bool has_entry(const char *text, const char *name)
{
    size_t length = strlen(name);
    for (const char *at = strstr(text, ".entry "); at; at = strstr(at, ".entry ")) {
        at += strlen(".entry ");
        if (strncmp(at, name, length) == 0 && strchr("( \n", at[length]))
            return true;
    }
    return false;
}

int cuModuleGetFunction(void **function, void *module, const char *name)
{
    int result = call_begin();
    if (result)
        return result;
    struct module *m = object_check(module, OBJECT_MODULE);
    if (!m)
        return call_end(RESULT_INVALID_HANDLE);
    const struct simt_kernel *k = simt_find_kernel(name, m->sm);
    if (!has_entry(m->text, name) || !k)
        return call_end(RESULT_NOT_FOUND);
    struct function *f = object_open(OBJECT_FUNCTION, sizeof *f);
    if (!f)
        return call_end(CUDA_OUT_OF_MEMORY);
    f->module = m;
    f->kernel = k;
    f->max_shared = DEFAULT_SHARED;
    *function = f;
    return call_end(CUDA_SUCCESS);
}

int cuFuncGetAttribute(int *value, int attribute, void *function)
{
    int result = call_begin();
    if (result)
        return result;
    const struct function *f = object_check(function, OBJECT_FUNCTION);
    if (!f)
        return call_end(RESULT_INVALID_HANDLE);
    switch (attribute) {
    case CUDA_FUNCTION_LOCAL:
        *value = (int)emulated.settings.local_bytes;
        break;
    case CUDA_FUNCTION_REGISTERS:
        *value = 64;
        break;
    case CUDA_FUNCTION_SHARED:
        *value = (int)f->max_shared;
        break;
    default:
        return call_end(RESULT_INVALID_VALUE);
    }
    return call_end(CUDA_SUCCESS);
}

int cuFuncSetAttribute(void *function, int attribute, int value)
{
    int result = call_begin();
    if (result)
        return result;
    struct function *f = object_check(function, OBJECT_FUNCTION);
    if (!f)
        return call_end(RESULT_INVALID_HANDLE);
    if (attribute != CUDA_FUNCTION_SHARED || value < 0 || (size_t)value > emulated.settings.shared_per_block)
        return call_end(RESULT_INVALID_VALUE);
    f->max_shared = (size_t)value;
    return call_end(CUDA_SUCCESS);
}

/* Blocks that an SM can hold. */
static uint32_t occupancy(const struct function *f, uint32_t n_threads, size_t shared_bytes)
{
    if (!n_threads || n_threads > f->kernel->threads || shared_bytes > emulated.settings.shared_per_block)
        return 0;
    size_t by_shared = (emulated.settings.shared_per_block + BLOCK_SHARED) / (shared_bytes + BLOCK_SHARED);
    uint32_t n = SM_THREADS / n_threads;
    n = n < SM_BLOCKS ? n : SM_BLOCKS;
    return by_shared < n ? (uint32_t)by_shared : n;
}

int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *n_blocks, void *function, int n_threads,
                                                size_t shared_bytes)
{
    int result = call_begin();
    if (result)
        return result;
    const struct function *f = object_check(function, OBJECT_FUNCTION);
    if (!f || n_threads <= 0)
        return call_end(f ? RESULT_INVALID_VALUE : RESULT_INVALID_HANDLE);
    *n_blocks = (int)occupancy(f, (uint32_t)n_threads, shared_bytes);
    return call_end(CUDA_SUCCESS);
}

/* Returns the error of a launch that a device refuses. */
static int check_launch(const struct function *f, uint32_t n_blocks, uint32_t n_threads,
                        uint32_t shared_bytes, bool cooperative)
{
    if (!n_blocks || !n_threads || n_threads % SIMT_LANES || n_threads > f->kernel->threads ||
        shared_bytes > f->max_shared)
        return RESULT_INVALID_VALUE;
    uint32_t fit = occupancy(f, n_threads, shared_bytes) * emulated.settings.n_sms;
    if (!fit)
        return RESULT_OUT_OF_RESOURCES;
    return cooperative && n_blocks > fit ? RESULT_TOO_LARGE : CUDA_SUCCESS;
}

static int launch(void *function, const unsigned grid[3], const unsigned block[3], unsigned shared_bytes,
                  void *stream, void **parameters, bool cooperative)
{
    int result = call_begin();
    if (result)
        return result;
    const struct function *f = object_check(function, OBJECT_FUNCTION);
    struct stream *s = object_check(stream, OBJECT_STREAM);
    if (!f || !s)
        return call_end(RESULT_INVALID_HANDLE);
    if (grid[1] != 1 || grid[2] != 1 || block[1] != 1 || block[2] != 1 || !parameters || !parameters[0])
        return call_end(RESULT_INVALID_VALUE);
    result = check_launch(f, grid[0], block[0], shared_bytes, cooperative);
    if (result)
        return call_end(result);
    result = s->capture ? 0 : fault_due(FAULT_LAUNCH);
    if (result) {
        emulated_poison(result);
        return call_end(result);
    }
    struct work w = {.kind = WORK_GRID};
    w.grid.kernel = f->kernel;
    w.grid.n_blocks = grid[0];
    w.grid.n_threads = block[0];
    uint32_t per_sm = occupancy(f, block[0], shared_bytes);
    w.grid.n_resident =
        (cooperative || per_sm < SM_RESIDENT ? per_sm : SM_RESIDENT) * emulated.settings.n_sms;
    w.grid.shared_bytes = shared_bytes;
    w.grid.cooperative = cooperative;
    if (f->kernel->args_size > sizeof w.grid.args)
        return call_end(RESULT_INVALID_VALUE);
    memcpy(w.grid.args, parameters[0], f->kernel->args_size);
    return call_end(stream_add(s, &w));
}

int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared_bytes, void *stream, void **parameters, void **extra)
{
    const unsigned grid[] = {gx, gy, gz}, block[] = {bx, by, bz};
    if (extra)
        return RESULT_INVALID_VALUE;
    return launch(function, grid, block, shared_bytes, stream, parameters, false);
}

int cuLaunchCooperativeKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                              unsigned bz, unsigned shared_bytes, void *stream, void **parameters)
{
    const unsigned grid[] = {gx, gy, gz}, block[] = {bx, by, bz};
    return launch(function, grid, block, shared_bytes, stream, parameters, true);
}
