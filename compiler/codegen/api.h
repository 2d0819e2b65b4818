/* What plc asks of the code generator. */
#ifndef PLAN_CODEGEN_API_H
#define PLAN_CODEGEN_API_H

#include "codegen/codegen.h"
#include "codegen/program_to_json.h"

typedef struct CodegenJob {
    const ProgramFacts *facts;
    const char *cpu;                        /* --cpu */
    Text *text;                             /* LLVM IR or PTX is added here; or NULL */
    const char *assembly, *object, *binary; /* paths to write, or NULL; binary needs object */
    const char *runtime_library;
} CodegenJob;

typedef struct CodegenApi {
    bool (*run)(Session *s, const CodegenJob *job); /* false after diagnostics */
    const char *(*json)(const ProgramFacts *facts);
    bool (*ptx)(Session *s, const CodegenJob *job, int sm);
} CodegenApi;

extern const CodegenApi plan_codegen_api;

#endif
