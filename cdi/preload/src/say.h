/* One line on the host's stderr, the only thing it ever hears from us. */
#ifndef AQ_SAY_H
#define AQ_SAY_H

#include <stddef.h>

/* Writes "aliquot: " and the parts, up to a NULL, as one line in one call. */
void aq_say_parts(const char *const *parts);

#define aq_say(...) aq_say_parts((const char *const[]){ __VA_ARGS__, NULL })

#endif
