/* Writes slices ("ph":"X") as they end. Timestamps are of the machine's monotonic clock, so that the files of all ranks
 * line up. */
#include "log/trace.h"

#include "core/util.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct PrtTrace {
    FILE *file;
    int rank;
    bool paused;
};

static void write_text(FILE *file, const char *text) {
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') fputc('\\', file);
        if ((unsigned char)*text >= 32) fputc(*text, file);
    }
}

PrtTrace *prt_trace_open(const char *directory, int rank, const char *plan) {
    char path[4096];
    snprintf(path, sizeof path, "%s/rank%d_trace.json", directory, rank);
    PrtTrace *trace = calloc(1, sizeof *trace);
    if (!trace) return NULL;
    trace->rank = rank;
    trace->file = fopen(path, "w");
    if (!trace->file) {
        free(trace);
        return NULL;
    }
    fprintf(trace->file, "{\"distributedInfo\":{\"rank\":%d,\"backend\":\"shared memory\"},\"traceEvents\":[\n", rank);
    fprintf(trace->file, "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":{\"name\":\"rank %d of ", rank,
            rank);
    write_text(trace->file, plan);
    fputs("\"}}", trace->file);
    return trace;
}

void prt_trace_close(PrtTrace *trace) {
    if (!trace) return;
    fputs("\n]}\n", trace->file);
    fclose(trace->file);
    free(trace);
}

void prt_trace_pause(PrtTrace *trace) {
    if (trace) trace->paused = true;
}

double prt_trace_start(const PrtTrace *trace) { return trace ? prt_now() : 0; }

void prt_trace_end(PrtTrace *trace, const char *name, double start) {
    if (!trace || trace->paused) return;
    fputs(",\n{\"ph\":\"X\",\"name\":\"", trace->file);
    write_text(trace->file, name);
    fprintf(trace->file, "\",\"pid\":%d,\"tid\":0,\"ts\":%.3f,\"dur\":%.3f}", trace->rank, start * 1e6,
            (prt_now() - start) * 1e6);
}
