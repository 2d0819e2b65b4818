/* Debug info: machine code to lines of the .plan file.
 *
 * One compile unit for the module, one subprogram for each kernel at the line of its loop, a location on each
 * instruction from the node that caused it. Only line tables are emitted: there are no variables to show. A kernel may
 * mix lines of several files (a layer of the standard library called from the user's file): lines of another file
 * stand in a lexical block of that file. */
#include "codegen/llvm_util.h"

static LLVMMetadataRef file_of(Codegen *g, int32_t file) {
    if (file <= 0 || file > g->n_debug_files) file = 1;
    LLVMMetadataRef *slot = &g->debug_files[file - 1];
    if (*slot == NULL) {
        const char *path = file <= g->session->files.n ? g->session->files.at[file - 1].path : "(compiler)";
        *slot = LLVMDIBuilderCreateFile(g->debug, path, strlen(path), "", 0);
    }
    return *slot;
}

void cg_debug_begin(Codegen *g) {
    if (g->target.no_debug_info) return;
    g->n_debug_files = g->session->files.n > 0 ? g->session->files.n : 1;
    g->debug_files = NEW_N(g->arena, LLVMMetadataRef, g->n_debug_files);
    g->debug_blocks = NEW_N(g->arena, LLVMMetadataRef, g->n_debug_files);
    g->debug = LLVMCreateDIBuilder(g->module);
    static const char producer[] = "plc " PLAN_VERSION;
    g->debug_unit = LLVMDIBuilderCreateCompileUnit(g->debug, LLVMDWARFSourceLanguageC99, file_of(g, 1), producer,
                                                   sizeof producer - 1, true, "", 0, 0, "", 0,
                                                   LLVMDWARFEmissionLineTablesOnly, 0, false, false, "", 0, "", 0);
    static const char version_key[] = "Debug Info Version", dwarf_key[] = "Dwarf Version";
    V version = cg_i32(g, LLVMDebugMetadataVersion()), dwarf = cg_i32(g, 4);
    LLVMAddModuleFlag(g->module, LLVMModuleFlagBehaviorWarning, version_key, sizeof version_key - 1,
                      LLVMValueAsMetadata(version));
    LLVMAddModuleFlag(g->module, LLVMModuleFlagBehaviorWarning, dwarf_key, sizeof dwarf_key - 1,
                      LLVMValueAsMetadata(dwarf));
}

void cg_debug_function(Codegen *g, V function, const char *name, Span span) {
    g->debug_scope = NULL;
    if (g->debug == NULL || span.file == 0) return;
    unsigned line = (unsigned)session_place(g->session, span).line;
    LLVMMetadataRef file = file_of(g, span.file);
    LLVMMetadataRef type = LLVMDIBuilderCreateSubroutineType(g->debug, file, NULL, 0, LLVMDIFlagZero);
    g->debug_scope = LLVMDIBuilderCreateFunction(g->debug, file, name, strlen(name), name, strlen(name), file, line,
                                                 type, false, true, line, LLVMDIFlagZero, true);
    g->debug_file = span.file;
    memset(g->debug_blocks, 0, sizeof *g->debug_blocks * (size_t)g->n_debug_files);
    LLVMSetSubprogram(function, g->debug_scope);
    LLVMMetadataRef place = LLVMDIBuilderCreateDebugLocation(g->context, line, 0, g->debug_scope, NULL);
    LLVMSetCurrentDebugLocation2(g->builder, place);
}

void cg_debug_at(Codegen *g, Span span) {
    if (g->debug_scope == NULL || span.file == 0 || span.file > g->n_debug_files) return;
    LLVMMetadataRef scope = g->debug_scope;
    if (span.file != g->debug_file) {
        LLVMMetadataRef *block = &g->debug_blocks[span.file - 1];
        if (*block == NULL)
            *block = LLVMDIBuilderCreateLexicalBlockFile(g->debug, g->debug_scope, file_of(g, span.file), 0);
        scope = *block;
    }
    Place place = session_place(g->session, span);
    LLVMMetadataRef location =
        LLVMDIBuilderCreateDebugLocation(g->context, (unsigned)place.line, (unsigned)place.column, scope, NULL);
    LLVMSetCurrentDebugLocation2(g->builder, location);
}

void cg_debug_leave(Codegen *g) {
    g->debug_scope = NULL;
    LLVMSetCurrentDebugLocation2(g->builder, NULL);
}

void cg_debug_finish(Codegen *g) {
    if (g->debug != NULL) LLVMDIBuilderFinalize(g->debug);
}
