/* Loading: every rank reads its own blocks, after all have checked the sums of the files together. */
#include "checkpoint/format.h"

#include "comm/comm.h"
#include "core/json.h"
#include "core/util.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char where[] = "loading a checkpoint";

typedef struct Loader {
    PrtRank *rank;
    const char *path; /* of the file */
    int fd, error;
    char *block;
    int64_t at, width;
} Loader;

static bool read_run(void *context, int64_t local, int64_t global, int64_t n) {
    Loader *l = context;
    l->error = prt_pread_all(l->fd, l->block + local * l->width, n * l->width, l->at + global * l->width);
    return !l->error;
}

static void shape_text(char *text, size_t size, const int64_t *shape, int n) {
    size_t at = 0;
    for (int i = 0; i < n && at < size; i++)
        at += (size_t)snprintf(text + at, size - at, "%s%lld", i ? ", " : "", (long long)shape[i]);
    if (!n) text[0] = 0;
}

static void check_entry(Loader *l, const PrtTensor *tensor, const PrtEntry *entry) {
    char theirs[160], ours[160];
    if (!entry) prt_fail(l->rank, "`%s` has no tensor `%s`", l->path, tensor->name);
    bool same = entry->n_dims == tensor->n_dims;
    for (int i = 0; same && i < tensor->n_dims; i++) same = entry->shape[i] == prt_saved_extent(tensor, i);
    shape_text(theirs, sizeof theirs, entry->shape, entry->n_dims);
    int64_t wanted[PRT_MAX_DIMS];
    for (int i = 0; i < tensor->n_dims; i++) wanted[i] = prt_saved_extent(tensor, i);
    shape_text(ours, sizeof ours, wanted, tensor->n_dims);
    if (!same)
        prt_fail(l->rank, "`%s`: `%s` has shape [%s], the program's has [%s]", l->path, tensor->name, theirs, ours);
    if (entry->dtype != tensor->dtype) {
        prt_fail(l->rank, "`%s`: `%s` is %s, the program's is %s", l->path, tensor->name, prt_dtype_name[entry->dtype],
                 prt_dtype_name[tensor->dtype]);
    }
}

static bool has_tensor(const PrtProgram *program, const char *name) {
    for (int r = 0; r < program->n_roles; r++)
        for (int k = 0; k < program->roles[r].n_tensors; k++)
            if (!strcmp(program->roles[r].tensors[k].name, name)) return true;
    return false;
}

static void load_file(Loader *l, PrtFileKind kind) {
    PrtRank *rank = l->rank;
    const PrtRole *role = &rank->program->roles[rank->role];
    char why[1024];
    PrtTable table;
    l->fd = open(l->path, O_RDONLY | O_CLOEXEC);
    if (l->fd < 0) prt_fail(rank, "cannot open `%s`: %s", l->path, strerror(errno));
    if (!prt_table_read(l->path, l->fd, &table, why, sizeof why)) prt_fail(rank, "%s", why);
    int expected = 0;
    for (int i = 0; i < role->n_tensors; i++) {
        const PrtTensor *tensor = &role->tensors[i];
        PrtFileKind copied = strcmp(tensor->kind, "moment") ? PRT_FILE_MODEL : PRT_FILE_OPTIMIZER;
        if (prt_file_of(tensor) != kind && !(tensor->copied && kind == copied)) continue;
        const PrtEntry *entry = prt_table_find(&table, tensor->name);
        if (!entry && prt_is_loss_scale(tensor->name)) continue; /* saved by a plan without one: it starts anew */
        check_entry(l, tensor, entry);
        expected++;
        l->block = rank->arena + tensor->offset;
        l->at = entry->begin;
        l->width = prt_dtype_bytes(tensor->dtype);
        if (!prt_block_runs(rank->program, tensor, rank->coords, read_run, l)) {
            prt_fail(rank, "cannot read `%s` from `%s`: %s", tensor->name, l->path,
                     l->error < 0 ? "the file ends early" : strerror(l->error));
        }
    }
    for (int i = 0; expected < table.n && i < table.n; i++) {
        if (!has_tensor(rank->program, table.entries[i].name) && !prt_is_loss_scale(table.entries[i].name))
            prt_fail(rank, "`%s` has a tensor `%s` that the program does not have", l->path, table.entries[i].name);
    }
    prt_table_free(&table);
    close(l->fd);
}

/* ---- sums ---- */

static int64_t number_of(const PrtJson *file, const char *name) {
    const PrtJson *value = prt_json_get(file, name);
    return prt_json_is(value, PRT_JSON_NUMBER) && value->number >= 0 && value->number < 9e15 ? (int64_t)value->number
                                                                                             : -1;
}

static void check_sums(PrtRank *rank, const char *path, const PrtJson *file) {
    int64_t bytes = number_of(file, "bytes");
    int64_t chunk = number_of(file, "chunk");
    const PrtJson *sums = prt_json_get(file, "xxh64"), *item;
    struct stat about;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &about)) prt_fail(rank, "cannot open `%s`: %s", path, strerror(errno));
    if (about.st_size != bytes) {
        prt_fail(rank, "`%s` is damaged: it has %lld bytes, %lld were written", path, (long long)about.st_size,
                 (long long)bytes);
    }
    if (chunk <= 0) prt_fail(rank, "the COMPLETE file beside `%s` is damaged", path);
    int64_t i = 0;
    PRT_JSON_EACH(item, sums) {
        uint64_t sum = 0;
        char hex[24];
        int64_t at = i * chunk, n = bytes - at < chunk ? bytes - at : chunk;
        if (i++ % rank->n_ranks != rank->number || n < 0) continue;
        int error = prt_xxh64_file(fd, at, n, &sum);
        if (error) prt_fail(rank, "cannot read `%s`: %s", path, error < 0 ? "it ends early" : strerror(error));
        snprintf(hex, sizeof hex, "%016llx", (unsigned long long)sum);
        if (prt_json_is(item, PRT_JSON_TEXT) && !strcmp(item->text, hex)) continue;
        prt_fail(rank,
                 "`%s` is damaged: the checksum of bytes %lld to %lld is %s, not as written; use an earlier checkpoint "
                 "with `--resume DIR`",
                 path, (long long)at, (long long)(at + n), hex);
    }
    if (i * chunk < bytes) prt_fail(rank, "the COMPLETE file beside `%s` is damaged", path);
    close(fd);
}

static void check_folder(PrtRank *rank, const char *folder, bool moments) {
    char path[2 * PRT_PATH], text[262144 + 1];
    snprintf(path, sizeof path, "%s/COMPLETE", folder);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat about;
    if (fd < 0 || fstat(fd, &about)) prt_fail(rank, "cannot open `%s`: %s", path, strerror(errno));
    if (about.st_size >= (off_t)sizeof text || prt_pread_all(fd, text, about.st_size, 0))
        prt_fail(rank, "`%s` is damaged", path);
    close(fd);
    text[about.st_size] = 0;
    PrtJson *root = prt_json_parse(text);
    const PrtJson *files = prt_json_get(root, "files"), *file;
    if (!prt_json_is(files, PRT_JSON_LIST)) prt_fail(rank, "`%s` is damaged", path);
    int seen = 0;
    PRT_JSON_EACH(file, files) {
        const char *name = prt_json_text(prt_json_get(file, "name"));
        if (!name || strchr(name, '/')) prt_fail(rank, "`%s` is damaged", path);
        seen++;
        if (!moments && !strcmp(name, prt_file_name[PRT_FILE_OPTIMIZER])) continue;
        char each[2 * PRT_PATH];
        snprintf(each, sizeof each, "%s/%s", folder, name);
        check_sums(rank, each, file);
    }
    if (seen < 3) prt_fail(rank, "`%s` is damaged", path);
    prt_json_free(root);
}

void prt_checkpoint_load(PrtRank *rank, const char *from, bool moments) {
    struct stat about;
    if (stat(from, &about)) prt_fail(rank, "cannot open `%s`: %s", from, strerror(errno));
    Loader l = {.rank = rank, .path = from};
    if (!S_ISDIR(about.st_mode)) {
        load_file(&l, PRT_FILE_MODEL);
    } else {
        check_folder(rank, from, moments);
        prt_barrier(rank, PRT_WORLD, where); /* all sums are right before anything is read */
        for (int kind = 0; kind < (moments ? PRT_FILE_KINDS : 1); kind++) {
            char path[2 * PRT_PATH];
            snprintf(path, sizeof path, "%s/%s", from, prt_file_name[kind]);
            l.path = path;
            load_file(&l, (PrtFileKind)kind);
        }
    }
    prt_barrier(rank, PRT_WORLD, where);
}
