/* schema_format.c - formats that are regular. Those of URIs, dates and addresses follow the syntax of their
 * RFCs; days are checked by month, and 29 February by year. */
#include "schema_private.h"

#include <string.h>

#define LEAP "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
#define DATE                                                                                                 \
    "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-" \
    "(?:0[1-9]|1[0-9]|2[0-8]))|" LEAP "-02-29)"
#define TIME                                                                                                 \
    "(?:[01][0-9]|2[0-3]):[0-5][0-9]:(?:[0-5][0-9]|60)(?:\\.[0-9]+)?(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][" \
    "0-9])"
#define BYTE "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define IPV4 "(?:" BYTE "\\.){3}" BYTE
#define H16  "[0-9a-fA-F]{1,4}"
#define LS32 "(?:" H16 ":" H16 "|" IPV4 ")"
#define IPV6                                                                                                 \
    "(?:(?:" H16 ":){6}" LS32 "|::(?:" H16 ":){5}" LS32 "|(?:" H16 ")?::(?:" H16 ":){4}" LS32 "|(?:(?:" H16  \
    ":){0,1}" H16 ")?::(?:" H16 ":){3}" LS32 "|(?:(?:" H16 ":){0,2}" H16 ")?::(?:" H16 ":){2}" LS32          \
    "|(?:(?:" H16 ":){0,3}" H16 ")?::" H16 ":" LS32 "|(?:(?:" H16 ":){0,4}" H16 ")?::" LS32 "|(?:(?:" H16    \
    ":){0,5}" H16 ")?::" H16 "|(?:(?:" H16 ":){0,6}" H16 ")?::)"
#define LABEL "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
#define HOST  LABEL "(?:\\." LABEL ")+" /* the domain of an address; validators want a dot in it */
/* At most 253 characters; a limit of the whole beside that of the labels needs too many states, so this is
 * narrower: four labels, or ten of up to 24 characters. */
#define SHORT    "[a-zA-Z0-9](?:[-a-zA-Z0-9]{0,22}[a-zA-Z0-9])?"
#define FOURTH   "[a-zA-Z0-9](?:[-a-zA-Z0-9]{0,59}[a-zA-Z0-9])?"
#define HOSTNAME "(?:" LABEL "(?:\\." LABEL "){0,2}(?:\\." FOURTH ")?|" SHORT "(?:\\." SHORT "){0,9})"
#define PCT      "%[0-9a-fA-F]{2}"
#define UCHAR    "-a-zA-Z0-9._~!$&'()*+,;="
#define AUTH     "(?:(?:[" UCHAR ":]|" PCT ")*@)?(?:\\[" IPV6 "\\]|(?:[" UCHAR "]|" PCT ")*)(?::[0-9]*)?"
#define PCHAR    "(?:[" UCHAR ":@]|" PCT ")"
#define TAIL     "(?:\\?(?:[" UCHAR ":@/?]|" PCT ")*)?(?:#(?:[" UCHAR ":@/?]|" PCT ")*)?"
#define HIER     "(?://" AUTH "(?:/" PCHAR "*)*|/(?:" PCHAR "+(?:/" PCHAR "*)*)?|" PCHAR "+(?:/" PCHAR "*)*)?"
#define URI      "[a-zA-Z][a-zA-Z0-9+.-]*:" HIER TAIL
#define NOCOLON  "(?:[" UCHAR "@]|" PCT ")"
#define RELATIVE                                                                                             \
    "(?://" AUTH "(?:/" PCHAR "*)*|/(?:" PCHAR "+(?:/" PCHAR "*)*)?|" NOCOLON "+(?:/" PCHAR "*)*)?" TAIL

static const char *const formats[][2] = {
    {"date", DATE},
    {"time", TIME},
    {"date-time", DATE "[tT ]" TIME},
    {"uuid", "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"},
    {"email", "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]+(?:\\.[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]+)*@" HOST},
    {"hostname", HOSTNAME},
    {"ipv4", IPV4},
    {"ipv6", IPV6},
    {"uri", URI},
    {"url", "(?:https?|ftp)://" AUTH "(?:/" PCHAR "*)*" TAIL},
    {"uri-reference", "(?:" URI "|" RELATIVE ")"},
    {"json-pointer", "(?:/(?:[^~/]|~[01])*)*"},
    {"duration",
     "P(?:[0-9]+W|(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)(?:T(?:[0-9]+H(?:["
     "0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S))?|T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:["
     "0-9]+S)?|[0-9]+S))"},
};

bool format_is_irregular(const char *name)
{
    return !strcmp(name, "regex");
}

const char *format_regex(const char *name)
{
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (!strcmp(formats[i][0], name))
            return formats[i][1];
    return NULL;
}
