/* ptx_wrong.c - libcuda-wrong.so runs SILU with the first row of mutations.txt. */
extern int ptx_mutation;
int ptx_mutation = 1;
