/* From data sets to samples: split, order, inputs. */
#include "data/source.h"

#include "core/util.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

__attribute__((format(printf, 3, 4))) static bool refuse(char *why, size_t size, const char *format, ...) {
    va_list list;
    va_start(list, format);
    vsnprintf(why, size, format, list);
    va_end(list);
    return false;
}

static int64_t id_limit(const PrtProgram *program) {
    for (int i = 0; i < program->n_inputs; i++) {
        if (program->inputs[i].kind <= PRT_INPUT_NEXT && program->inputs[i].limit > 0) return program->inputs[i].limit;
    }
    return program->vocab;
}

/* The largest id that elements of this kind can hold. */
static int64_t largest_id(PrtElement element) {
    bool is_signed = element == PRT_E_I8 || element == PRT_E_I16 || element == PRT_E_I32 || element == PRT_E_I64;
    int64_t bits = 8 * prt_element_bytes(element) - is_signed;
    return bits > 32 ? INT64_MAX : (INT64_C(1) << bits) - 1;
}

/* Puts the file's first part into the training stream and its last `split` into that of validation. */
static bool place(PrtData *data, int file, double split, PrtSet whole) {
    const PrtFile *f = &data->files.items[file];
    int64_t kept = whole == PRT_VALIDATION ? f->count : (int64_t)((double)f->count * split);
    int64_t parts[2] = {f->count - kept, kept}, at = 0;
    for (int set = 0; set < 2; set++) {
        PrtStream *stream = &data->stream[set];
        bool join = data->kind == PRT_DATA_TEXT && stream->n > 0 && parts[set] > 0;
        if (join && !prt_stream_add(stream, -1, 0, 1)) return false;
        if (!prt_stream_add(stream, file, at, parts[set])) return false;
        at += parts[set];
    }
    return true;
}

static bool open_set(PrtData *data, const PrtDataset *set, double split, PrtSet whole, char *why, size_t size) {
    int before = data->files.n;
    for (int i = 0; i < set->n_paths; i++) {
        if (!prt_files_add(&data->files, set->kind, set->paths[i], set->span, why, size)) return false;
    }
    if (data->files.n == before) {
        return refuse(why, size, "the data named at %s is empty: %d files hold nothing",
                      *set->span ? set->span : "the program", data->files.n_empty);
    }
    int64_t limit = id_limit(data->program);
    for (int i = before; i < data->files.n; i++) {
        const PrtFile *file = &data->files.items[i];
        if (set->kind == PRT_DATA_TOKENS && limit - 1 > largest_id(file->element)) {
            return refuse(
                why, size,
                "`%s` has %d-bit ids, which end at %lld, but the vocabulary has %lld: larger ids have been cut off",
                file->path, (int)(8 * prt_element_bytes(file->element)), (long long)largest_id(file->element),
                (long long)limit);
        }
        if (!place(data, i, split, whole)) return refuse(why, size, "out of memory");
    }
    return true;
}

static const char *name_of(PrtSet set) { return set == PRT_TRAINING ? "training" : "validation"; }

/* Sequences that the set must hold at least: a step, or one micro-batch of evaluation. */
static bool check_samples(const PrtData *data, PrtSet set, char *why, size_t size) {
    const PrtProgram *p = data->program;
    int64_t need = set == PRT_TRAINING ? p->batch : p->micro_batch, have = data->samples[set];
    if (have >= need) return true;
    const char *unit = set == PRT_TRAINING ? "one step" : "one micro-batch of evaluation";
    if (data->kind == PRT_DATA_ARRAYS) {
        return refuse(why, size, "the %s data has %lld samples, but %s needs %lld", name_of(set), (long long)have, unit,
                      (long long)need);
    }
    return refuse(
        why, size, "the %s data has %lld ids, but %s needs %lld: %lld sequences of %lld, and one more%s", name_of(set),
        (long long)data->stream[set].total, unit, (long long)(need * p->seq + 1), (long long)need, (long long)p->seq,
        set == PRT_VALIDATION && !data->own_validation ? "; use a larger `split`, more data or a smaller micro-batch"
                                                       : "; use more data or a smaller batch");
}

static bool open_ids(PrtData *data, bool evaluates, char *why, size_t size) {
    const PrtProgram *p = data->program;
    data->own_validation = p->n_validation > 0;
    double split = data->own_validation || !p->eval_every ? 0 : p->split;
    if (!open_set(data, &p->data[data->number], split, PRT_TRAINING, why, size)) return false;
    if (data->own_validation && !open_set(data, &p->validation[0], 1, PRT_VALIDATION, why, size)) return false;
    if (!prt_files_look(&data->files, data->kind == PRT_DATA_TEXT, id_limit(p), &data->look, why, size)) return false;
    for (int set = 0; set < 2; set++) {
        int64_t total = data->stream[set].total;
        data->samples[set] = total > 0 ? (total - 1) / p->seq : 0;
    }
    return check_samples(data, PRT_TRAINING, why, size) &&
           (!evaluates || check_samples(data, PRT_VALIDATION, why, size));
}

static int column_index(const PrtData *data, const char *name) {
    for (int i = 0; i < data->n_columns; i++) {
        if (!strcmp(data->columns[i], name)) return i;
    }
    return -1;
}

static bool open_columns(PrtData *data, const PrtDataset *set, int64_t *rows, char *why, size_t size) {
    int before = data->files.n;
    for (int i = 0; i < set->n_paths; i++) {
        if (!prt_files_add(&data->files, set->kind, set->paths[i], set->span, why, size)) return false;
        if (data->files.n != before + i + 1)
            return refuse(why, size, "column `%s`: `%s` is not one file with content", set->columns[i], set->paths[i]);
        const PrtFile *file = &data->files.items[before + i];
        if (i == 0) *rows = file->rows;
        if (file->rows == *rows) continue;
        return refuse(why, size, "the columns differ in length: `%s` has %lld rows, `%s` has %lld",
                      data->files.items[before].path, (long long)*rows, file->path, (long long)file->rows);
    }
    return true;
}

static bool check_column(const PrtData *data, const PrtInput *input, char *why, size_t size) {
    int column = column_index(data, input->column);
    if (column < 0)
        return refuse(why, size, "input `%s` reads column `%s`, which the data does not have", input->name,
                      input->column);
    for (int set = 0; set <= (data->own_validation ? 1 : 0); set++) {
        const PrtFile *file = &data->files.items[column + set * data->n_columns];
        int64_t row = file->rows ? file->count / file->rows : 0;
        if (row != input->row) {
            return refuse(why, size, "a row of `%s` has %lld elements, but input `%s` has %lld", file->path,
                          (long long)row, input->name, (long long)input->row);
        }
        if (input->dtype == PRT_I32 && file->element > PRT_E_I64) {
            return refuse(why, size, "`%s` holds %s, but input `%s` is made of whole numbers", file->path,
                          prt_element_name[file->element], input->name);
        }
    }
    return true;
}

static bool open_arrays(PrtData *data, bool evaluates, char *why, size_t size) {
    const PrtProgram *p = data->program;
    int64_t rows = 0, validation = 0;
    const PrtDataset *training = &p->data[data->number];
    data->n_columns = training->n_paths;
    data->columns = training->columns;
    data->own_validation = p->n_validation > 0;
    if (!open_columns(data, training, &rows, why, size)) return false;
    if (data->own_validation) {
        if (p->validation[0].kind != PRT_DATA_ARRAYS || p->validation[0].n_paths != data->n_columns) {
            return refuse(why, size, "the validation data does not have the columns of the training data");
        }
        if (!open_columns(data, &p->validation[0], &validation, why, size)) return false;
    } else if (p->eval_every) {
        validation = (int64_t)((double)rows * p->split);
        rows -= validation;
        data->first_row[PRT_VALIDATION] = rows;
    }
    data->samples[PRT_TRAINING] = rows;
    data->samples[PRT_VALIDATION] = validation;
    for (int i = 0; i < p->n_inputs; i++) {
        if (p->inputs[i].kind == PRT_INPUT_COLUMN && !check_column(data, &p->inputs[i], why, size)) return false;
    }
    return check_samples(data, PRT_TRAINING, why, size) &&
           (!evaluates || check_samples(data, PRT_VALIDATION, why, size));
}

static bool check_inputs(const PrtProgram *p, int kind, char *why, size_t size) {
    for (int i = 0; i < p->n_inputs; i++) {
        const PrtInput *input = &p->inputs[i];
        bool ids = input->kind == PRT_INPUT_TOKENS || input->kind == PRT_INPUT_NEXT;
        if (kind == PRT_DATA_ARRAYS ? ids : input->kind == PRT_INPUT_COLUMN) {
            return refuse(why, size, "input `%s` cannot be filled from data of this kind", input->name);
        }
    }
    if (kind != PRT_DATA_ARRAYS && p->seq < 1)
        return refuse(why, size, "the program has no `seq`, but its data is a stream of ids");
    return true;
}

static PrtData *open_number(const PrtProgram *program, int number, int64_t seed, bool evaluates, char *why,
                            size_t size) {
    PrtData *data = calloc(1, sizeof *data);
    if (!data) {
        snprintf(why, size, "out of memory");
        return NULL;
    }
    data->program = program;
    data->number = number;
    data->seed = seed + number;
    data->kind = (int)program->data[number].kind;
    bool ok = check_inputs(program, data->kind, why, size) &&
              (data->kind == PRT_DATA_ARRAYS ? open_arrays(data, evaluates, why, size)
                                             : open_ids(data, evaluates, why, size));
    if (ok) return data;
    prt_data_free(data);
    return NULL;
}

PrtData *prt_data_open(const PrtProgram *program, int64_t seed, bool evaluates, char *why, size_t size) {
    if (program->n_data == 0) {
        snprintf(why, size, "the program has no data");
        return NULL;
    }
    PrtData *first = NULL;
    for (int k = program->n_data - 1; k >= 0; k--) {
        PrtData *data = open_number(program, k, seed, evaluates, why, size);
        if (!data) {
            prt_data_free(first);
            return NULL;
        }
        data->next = first;
        first = data;
    }
    return first;
}

PrtData *prt_data_set(PrtData *data, int k) {
    while (k-- > 0) data = data->next;
    return data;
}

void prt_data_free(PrtData *data) {
    while (data) {
        PrtData *next = data->next;
        prt_files_free(&data->files);
        free(data->stream[0].pieces);
        free(data->stream[1].pieces);
        free(data);
        data = next;
    }
}

int64_t prt_data_samples(const PrtData *data, PrtSet set) {
    int64_t least = data->samples[set];
    for (data = data->next; data; data = data->next)
        if (data->samples[set] < least) least = data->samples[set];
    return least;
}

int64_t prt_data_sample(const PrtData *data, PrtSet set, int64_t index) {
    int64_t n = data->samples[set], epoch = index / n;
    uint64_t key = (uint64_t)data->seed * UINT64_C(0xd1342543de82ef95) + (uint64_t)epoch * UINT64_C(0x2545f4914f6cdd1d);
    if (set == PRT_VALIDATION) key = ~key;
    return prt_permute(index % n, n, key);
}

/* ---- inputs ---- */

static double element_at(PrtElement element, const void *data, int64_t i) {
    switch (element) {
    case PRT_E_U8: return ((const uint8_t *)data)[i];
    case PRT_E_I8: return ((const int8_t *)data)[i];
    case PRT_E_U16: return ((const uint16_t *)data)[i];
    case PRT_E_I16: return ((const int16_t *)data)[i];
    case PRT_E_U32: return ((const uint32_t *)data)[i];
    case PRT_E_I32: return ((const int32_t *)data)[i];
    case PRT_E_I64: return (double)((const int64_t *)data)[i];
    case PRT_E_F32: return (double)((const float *)data)[i];
    case PRT_E_F64: return ((const double *)data)[i];
    default: return 0;
    }
}

static void fill_row(PrtRank *rank, PrtData *data, int file, int64_t row, const PrtInput *input, void *to) {
    _Alignas(8) char block[16384];
    const PrtFile *f = &data->files.items[file];
    int64_t room = (int64_t)sizeof block / prt_element_bytes(f->element);
    for (int64_t i = 0; i < input->row; i += room) {
        int64_t n = input->row - i < room ? input->row - i : room;
        int error = prt_files_read(&data->files, file, row * input->row + i, n, block);
        if (error)
            prt_fail(rank, "cannot read `%s` at row %lld: %s", f->path, (long long)row,
                     error < 0 ? "it has become shorter" : strerror(error));
        for (int64_t k = 0; k < n; k++) {
            double value = element_at(f->element, block, k);
            if (input->dtype == PRT_F32) {
                ((float *)to)[i + k] = (float)value;
                continue;
            }
            if (value < 0 || value >= (double)(input->limit > 0 ? input->limit : INT64_C(1) << 31)) {
                prt_fail(rank, "`%s` holds %.0f in row %lld, but input `%s` takes 0 to %lld", f->path, value,
                         (long long)row, input->name,
                         (long long)(input->limit > 0 ? input->limit : INT64_C(1) << 31) - 1);
            }
            ((int32_t *)to)[i + k] = (int32_t)value;
        }
    }
}

void prt_data_fill(PrtRank *rank, PrtData *data, PrtSet set, const PrtInput *input, int64_t first, char *to) {
    char why[1024];
    if (input->kind == PRT_INPUT_MASK) {
        int64_t n = input->shape[0] * input->row;
        if (input->dtype == PRT_F32)
            for (int64_t i = 0; i < n; i++) ((float *)(void *)to)[i] = 1;
        else
            for (int64_t i = 0; i < n; i++) ((int32_t *)(void *)to)[i] = 1;
        return;
    }
    int64_t row_bytes = input->row * 4, seq = data->program->seq;
    for (int64_t i = 0; i < input->shape[0]; i++, to += row_bytes) {
        int64_t sample = prt_data_sample(data, set, first + i);
        if (input->kind == PRT_INPUT_COLUMN) {
            int file = column_index(data, input->column) +
                       (set == PRT_VALIDATION && data->own_validation ? data->n_columns : 0);
            fill_row(rank, data, file, data->first_row[set] + sample, input, to);
        } else if (!prt_stream_read(&data->stream[set], &data->files, sample * seq + (input->kind == PRT_INPUT_NEXT),
                                    seq, input->limit, (int32_t *)(void *)to, why, sizeof why)) {
            prt_fail(rank, "%s", why);
        }
    }
}

/* ---- report ---- */

static void report_one(const PrtData *data, FILE *out) {
    char a[32], b[32], c[32];
    const PrtFiles *files = &data->files;
    const char *unit = data->kind == PRT_DATA_ARRAYS ? "samples" : "sequences";
    fprintf(out, "data: %d %s (%s, %s), training %s %s, validation %s %s\n", files->n, files->n == 1 ? "file" : "files",
            files->items[0].format, prt_bytes((double)data->look.total, a), prt_commas(data->samples[0], b), unit,
            prt_commas(data->samples[1], c), unit);
    for (int i = 1; i < files->n; i++) {
        if (!strcmp(files->items[i].format, files->items[0].format)) continue;
        fprintf(out, "note: the files differ in format: `%s` is %s, `%s` is %s\n", files->items[0].path,
                files->items[0].format, files->items[i].path, files->items[i].format);
        break;
    }
    if (files->n_empty) fprintf(out, "note: %d empty files were passed over\n", files->n_empty);
    if (data->look.looked < data->look.total) {
        fprintf(out, "note: %s of %s were checked at the start; the rest is checked as it is read\n",
                prt_bytes((double)data->look.looked, a), prt_bytes((double)data->look.total, b));
    }
    if (data->look.marks)
        fprintf(out, "note: %lld files begin with a byte-order mark, which is kept as 3 bytes\n",
                (long long)data->look.marks);
    if (data->look.carriage_returns) {
        fprintf(out, "note: %s lines end in CR LF; both bytes are kept\n", prt_commas(data->look.carriage_returns, a));
    }
    if (data->look.invalid) {
        fprintf(out, "note: %s bytes are not UTF-8, the first in `%s` at byte %lld; they are kept as they are\n",
                prt_commas(data->look.invalid, a), data->look.invalid_path, (long long)data->look.invalid_offset);
    }
}

void prt_data_report(const PrtData *data, FILE *out) {
    for (; data; data = data->next) report_one(data, out);
}
