/* plc check: every static check of every plan of a file; no code, no LLVM. */
#include "driver/pipeline.h"

int command_check(Session *s, const Options *options) { return pipeline_check(s, options); }
