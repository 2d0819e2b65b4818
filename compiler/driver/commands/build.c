#include "driver/pipeline.h"

int command_build(Session *s, const Options *options) { return pipeline_build(s, options); }
