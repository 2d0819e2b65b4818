/* What can be asked of a program's description once it is parsed (json_to_program.c). */
#include "core/program.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const prt_dtype_name[PRT_DTYPES] = {"f32", "f64",  "bf16", "f16", "i32",
                                                "u32", "bool", "u8",   "i64", "exact"};
const char *const prt_dtype_safetensors[PRT_DTYPES] = {"F32", "F64",  "BF16", "F16", "I32",
                                                       "U32", "BOOL", "U8",   "I64", "exact"};

int64_t prt_dtype_bytes(PrtDType dtype) {
    static const int8_t bytes[PRT_DTYPES] = {4, 8, 2, 2, 4, 4, 1, 1, 8, 16};
    return bytes[dtype];
}

static void drop(const void *p) { free((void *)(uintptr_t)p); }

static void free_datasets(PrtDataset *sets, int n) {
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < sets[i].n_paths; k++) {
            drop(sets[i].paths[k]);
            if (sets[i].columns) drop(sets[i].columns[k]);
        }
        drop(sets[i].paths);
        drop(sets[i].columns);
        drop(sets[i].span);
    }
    free(sets);
}

static void free_scalars(PrtScalar *scalars, int n) {
    for (int i = 0; i < n; i++) drop(scalars[i].name);
    free(scalars);
}

static void free_inputs(PrtInput *inputs, int n) {
    for (int i = 0; i < n; i++) {
        drop(inputs[i].name);
        drop(inputs[i].column);
    }
    free(inputs);
}

static void free_role(PrtRole *role) {
    if (role->own_lists) {
        free_inputs(role->inputs, role->n_inputs);
        free_scalars(role->scalars, role->n_scalars);
        free_scalars(role->results, role->n_results);
    }
    for (int i = 0; i < role->n_memory; i++) drop(role->memory[i].kind);
    for (int i = 0; i < role->n_tensors; i++) {
        drop(role->tensors[i].name);
        drop(role->tensors[i].kind);
        for (int d = 0; d < PRT_MAX_DIMS; d++) free(role->tensors[i].uneven[d]);
    }
    free(role->tensors);
    for (int i = 0; i < role->n_actions; i++) drop(role->actions[i].kind);
    free(role->actions);
}

void prt_program_free(PrtProgram *p) {
    if (!p) return;
    const char *texts[] = {p->compiler, p->source, p->plan, p->model, p->hash, p->optimizer, p->save_path, p->from};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) drop(texts[i]);
    for (int i = 0; i < p->n_axes; i++) drop(p->mesh[i].name);
    free(p->machine);
    free_datasets(p->data, p->n_data);
    free_datasets(p->validation, p->n_validation);
    free_inputs(p->inputs, p->n_inputs);
    free_scalars(p->scalars, p->n_scalars);
    free_scalars(p->results, p->n_results);
    for (int i = 0; p->roles && i < p->n_roles; i++) free_role(&p->roles[i]);
    free(p->roles);
    free(p);
}

bool prt_is_loss_scale(const char *tensor) { return !strncmp(tensor, "loss_scale.", 11); }

static const PrtScalar *find_scalar(const PrtScalar *scalars, int n, const char *name) {
    for (int i = 0; i < n; i++) {
        if (!strcmp(scalars[i].name, name)) return &scalars[i];
    }
    return NULL;
}

const PrtScalar *prt_program_result(const PrtProgram *program, const char *name) {
    return find_scalar(program->results, program->n_results, name);
}

const PrtScalar *prt_role_scalar(const PrtRole *role, const char *name) {
    return find_scalar(role->scalars, role->n_scalars, name);
}

const PrtScalar *prt_role_result(const PrtRole *role, const char *name) {
    return find_scalar(role->results, role->n_results, name);
}

int prt_program_role(const PrtProgram *program, int number) {
    int coords[PRT_MAX_AXES];
    if (program->role_axis < 0 || program->n_roles < 2) return 0;
    prt_program_coords(program, number, coords);
    return coords[program->role_axis];
}

bool prt_program_has_tokens(const PrtProgram *program) {
    return program->seq > 0 && program->n_data > 0 && program->data[0].kind != PRT_DATA_ARRAYS;
}

double prt_rate_at(const PrtRate *rate, int64_t step) {
    if (step <= rate->warmup) return rate->peak * (double)step / (double)rate->warmup;
    if (rate->kind == PRT_RATE_CONSTANT) return rate->peak;
    double span = (double)(rate->steps - rate->warmup);
    double done = span > 0 ? (double)(step - rate->warmup) / span : 1;
    if (done > 1) done = 1;
    if (rate->kind == PRT_RATE_COSINE) done = (1 - cos(3.14159265358979323846 * done)) / 2;
    return rate->peak + (rate->end - rate->peak) * done;
}

void prt_program_coords(const PrtProgram *program, int rank, int *coords) {
    for (int a = program->n_axes - 1; a >= 0; a--) {
        coords[a] = rank % program->mesh[a].size;
        rank /= program->mesh[a].size;
    }
}

int prt_program_data_block(const PrtProgram *program, const int *coords) {
    int block = 0;
    for (int i = 0; i < program->n_data_axes; i++) {
        int axis = program->data_axes[i];
        block = block * program->mesh[axis].size + coords[axis];
    }
    return block;
}

int prt_input_first_set(const PrtProgram *program, const PrtInput *input, const int *coords) {
    int block = 0;
    for (int i = 0; i < input->n_set_axes; i++) {
        int axis = input->set_axes[i];
        block = block * program->mesh[axis].size + coords[axis];
    }
    return block * (int)input->sets;
}
