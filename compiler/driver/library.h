/* Where the files are that come with plc. */
#ifndef PLAN_LIBRARY_H
#define PLAN_LIBRARY_H

#include "base/base.h"

/* The folder of the executable, without a slash at the end; "." when the system does not tell. */
const char *library_exe_folder(Session *s);
/* Sets s->library_path: <prefix>/share/plan/stdlib beside an installed plc, else the source tree's; NULL when neither
 * is there. */
void library_find(Session *s);
/* The text of the error reference, or NULL. */
const char *library_errors(Session *s);

#endif
