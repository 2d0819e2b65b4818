/* Saving: all ranks together.
 *
 *   rank 0   makes PATH/.saving, its files at full size (so a full disk shows here) with their headers
 *   all      write the blocks of which they hold the first copy, at their place
 *   rank 0   syncs; all sum chunks of what was written, read back through the kernel
 *   rank 0   writes state.json and COMPLETE, syncs, renames the folder, drops the oldest
 * After each part all ranks learn whether any failed; then rank 0 removes PATH/.saving and the job ends. */
#include "checkpoint/format.h"

#include "comm/comm.h"
#include "core/json.h"
#include "core/util.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

static const char where[] = "saving a checkpoint";

typedef struct Saver {
    PrtRank *rank;
    const char *path; /* of all checkpoints */
    char folder[PRT_PATH + 32], final[PRT_PATH + 32];
    PrtTable tables[PRT_FILE_KINDS];
    int fds[PRT_FILE_KINDS];
    PrtText files; /* rank 0: for COMPLETE */
    /* of one tensor, while its runs are written */
    int fd;
    const char *block;
    int64_t at, width;
} Saver;

static void remove_folder(const char *folder) {
    DIR *listing = opendir(folder);
    if (!listing) return;
    char path[2 * PRT_PATH];
    snprintf(path, sizeof path, "%s/COMPLETE", folder);
    unlink(path); /* first: from now on it is not taken for a checkpoint */
    for (struct dirent *item; (item = readdir(listing));) {
        if (!strcmp(item->d_name, ".") || !strcmp(item->d_name, "..")) continue;
        snprintf(path, sizeof path, "%s/%s", folder, item->d_name);
        unlink(path);
    }
    closedir(listing);
    rmdir(folder);
}

static int sync_folder(const char *folder) {
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return errno;
    int error = fsync(fd) && errno != EINVAL && errno != ENOTSUP ? errno : 0;
    close(fd);
    return error;
}

/* All ranks come here with their error (0: none); when any has one, the job ends. */
static void agree(Saver *s, int error) {
    PrtRank *rank = s->rank;
    int64_t worst = prt_vote(rank, error < 0 ? EIO : error, where);
    if (!worst) return;
    if (rank->number == 0) {
        struct statvfs disk;
        char need[32], free_bytes[32] = "?";
        int64_t bytes = s->tables[0].file_bytes + s->tables[1].file_bytes;
        remove_folder(s->folder);
        if (!statvfs(s->path, &disk)) prt_bytes((double)disk.f_bavail * (double)disk.f_frsize, free_bytes);
        prt_fail(rank, "cannot save `%s`: %s (a checkpoint needs %s, free are %s); earlier checkpoints are untouched",
                 s->final, strerror((int)worst), prt_bytes((double)bytes, need), free_bytes);
    }
    prt_barrier(rank, PRT_WORLD, where); /* ends when rank 0 has given up */
    prt_leave(rank, PRT_EXIT_ABORTED);
}

/* ---- a model that is not finite is not saved ---- */

static bool all_finite(const float *x, int64_t n) {
    float sum = 0; /* x - x is 0, or NaN for infinities and NaN */
    for (int64_t i = 0; i < n; i++) sum += x[i] - x[i];
    return sum == 0;
}

static void check_finite(Saver *s) {
    PrtRank *rank = s->rank;
    const PrtRole *role = &rank->program->roles[rank->role];
    int64_t bad = 0;
    for (int i = 0; i < role->n_tensors && !bad; i++) {
        const PrtTensor *t = &role->tensors[i];
        if (!t->saved || t->dtype != PRT_F32) continue;
        if (!all_finite((const float *)(const void *)(rank->arena + t->offset), t->bytes / 4)) bad = i + 1;
    }
    int64_t worst = prt_vote(rank, bad, where);
    if (worst && bad == worst) {
        prt_fail(rank, "`%s` holds values that are not finite: `%s` is not saved; earlier checkpoints are untouched",
                 role->tensors[bad - 1].name, s->final);
    }
    if (worst) prt_barrier(rank, PRT_WORLD, where);
}

/* ---- files ---- */

static int make_file(const char *path, const char *header, const PrtTable *table) {
    int fd = open(path, O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0666);
    if (fd < 0) return errno;
    int error = table->file_bytes ? posix_fallocate(fd, 0, table->file_bytes) : 0;
    if (error == EOPNOTSUPP || error == EINVAL || error == ENOSYS) error = ftruncate(fd, table->file_bytes) ? errno : 0;
    if (!error) error = prt_pwrite_all(fd, header, table->header_bytes, 0);
    close(fd);
    return error;
}

static int make_files(Saver *s, char *const *headers) {
    char path[2 * PRT_PATH];
    remove_folder(s->folder);
    if (mkdir(s->folder, 0777)) return errno;
    for (int kind = 0; kind < PRT_FILE_KINDS; kind++) {
        snprintf(path, sizeof path, "%s/%s", s->folder, prt_file_name[kind]);
        int error = make_file(path, headers[kind], &s->tables[kind]);
        if (error) return error;
    }
    return 0;
}

static bool write_run(void *context, int64_t local, int64_t global, int64_t n) {
    Saver *s = context;
    int error = prt_pwrite_all(s->fd, s->block + local * s->width, n * s->width, s->at + global * s->width);
    if (error) errno = error;
    return !error;
}

static int write_blocks(Saver *s) {
    PrtRank *rank = s->rank;
    const PrtRole *role = &rank->program->roles[rank->role];
    for (int i = 0; i < role->n_tensors; i++) {
        const PrtTensor *tensor = &role->tensors[i];
        PrtFileKind kind = prt_file_of(tensor);
        if (kind == PRT_FILE_NONE || !prt_block_first(rank->program, tensor, rank->coords)) continue;
        s->fd = s->fds[kind];
        s->block = rank->arena + tensor->offset;
        s->at = prt_table_find(&s->tables[kind], tensor->name)->begin;
        s->width = prt_dtype_bytes(tensor->dtype);
        if (!prt_block_runs(rank->program, tensor, rank->coords, write_run, s)) return errno;
    }
    return 0;
}

static int open_files(Saver *s) {
    char path[2 * PRT_PATH];
    for (int kind = 0; kind < PRT_FILE_KINDS; kind++) {
        snprintf(path, sizeof path, "%s/%s", s->folder, prt_file_name[kind]);
        s->fds[kind] = open(path, O_RDWR | O_CLOEXEC);
        if (s->fds[kind] < 0) return errno;
    }
    return 0;
}

/* ---- checksums and COMPLETE ---- */

static void list_file(PrtText *files, const char *name, int64_t bytes, int64_t chunk, const uint64_t *sums, int64_t n) {
    prt_text_add(files, "%s\n    {\"name\": \"%s\", \"bytes\": %lld, \"chunk\": %lld, \"xxh64\": [",
                 files->n ? "," : "", name, (long long)bytes, (long long)chunk);
    for (int64_t i = 0; i < n; i++) prt_text_add(files, "%s\"%016llx\"", i ? ", " : "", (unsigned long long)sums[i]);
    prt_text_add(files, "]}");
}

static void sum_file(Saver *s, int kind) {
    PrtRank *rank = s->rank;
    int64_t bytes = s->tables[kind].file_bytes, chunk = prt_chunk_bytes(bytes), n = (bytes + chunk - 1) / chunk;
    uint64_t own[4096];
    uint64_t *sums = rank->job ? rank->job->checksums : own;
    int error = 0;
    for (int64_t i = rank->number; i < n && !error; i += rank->n_ranks) {
        error = prt_xxh64_file(s->fds[kind], i * chunk, i == n - 1 ? bytes - i * chunk : chunk, &sums[i]);
    }
    agree(s, error);
    if (rank->number == 0) list_file(&s->files, prt_file_name[kind], bytes, chunk, sums, n);
    agree(s, 0); /* before the next file's sums */
}

static int write_text(const char *folder, const char *name, const char *text) {
    char path[2 * PRT_PATH];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0666);
    if (fd < 0) return errno;
    int error = prt_pwrite_all(fd, text, (int64_t)strlen(text), 0);
    if (!error && fsync(fd)) error = errno;
    if (close(fd) && !error) error = errno;
    return error;
}

static void add_text(PrtText *text, const char *name, const char *value) {
    prt_text_add(text, ",\n  \"%s\": ", name);
    prt_text_quote(text, value);
}

static PrtText state_text(const PrtRank *rank, const PrtState *state) {
    const PrtProgram *p = rank->program;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    PrtText text = {0};
    prt_text_add(
        &text, "{\n  \"version\": 1,\n  \"step\": %lld,\n  \"samples\": %lld,\n  \"seed\": %lld,\n  \"batch\": %lld,\n",
        (long long)state->step, (long long)state->samples, (long long)state->seed, (long long)p->batch);
    prt_text_add(&text, "  \"run\": \"%016llx\",\n  \"saved_at\": \"%lld%09ld\"", (unsigned long long)state->run,
                 (long long)now.tv_sec, now.tv_nsec);
    add_text(&text, "source", p->source);
    add_text(&text, "plan", p->plan);
    add_text(&text, "model", p->model);
    add_text(&text, "hash", p->hash);
    add_text(&text, "compiler", p->compiler);
    add_text(&text, "optimizer", p->optimizer);
    prt_text_add(&text, ",\n  \"mesh\": {");
    for (int a = 0; a < p->n_axes; a++) {
        prt_text_add(&text, "%s", a ? ", " : "");
        prt_text_quote(&text, p->mesh[a].name);
        prt_text_add(&text, ": %d", p->mesh[a].size);
    }
    prt_text_add(&text, "}\n}\n");
    return text;
}

static int finish(Saver *s, const PrtState *state) {
    PrtText text = state_text(s->rank, state), complete = {0};
    if (text.failed) return ENOMEM;
    int error = write_text(s->folder, "state.json", text.data);
    uint64_t sum = prt_xxh64(text.data, text.n, 0);
    list_file(&s->files, "state.json", (int64_t)text.n, prt_chunk_bytes(0), &sum, 1);
    free(text.data);
    prt_text_add(&complete, "{\n  \"version\": 1,\n  \"files\": [%s\n  ]\n}\n", s->files.data ? s->files.data : "");
    if (s->files.failed || complete.failed) error = ENOMEM;
    if (!error) error = sync_folder(s->folder);
    if (!error) error = write_text(s->folder, "COMPLETE", complete.data);
    free(complete.data);
    if (!error) error = sync_folder(s->folder);
    if (!error && rename(s->folder, s->final)) {
        /* There is one of this step, of an earlier run: the two change places, so that one is there at any time. */
        error = errno == ENOTEMPTY || errno == EEXIST ? 0 : errno;
        if (!error && renameat2(AT_FDCWD, s->folder, AT_FDCWD, s->final, RENAME_EXCHANGE)) {
            remove_folder(s->final);
            error = rename(s->folder, s->final) ? errno : 0;
        }
        if (!error) remove_folder(s->folder);
    }
    return error ? error : sync_folder(s->path);
}

/* ---- keep K ---- */

static void drop_oldest(const char *path, const PrtState *state, int64_t keep) {
    char why[256], folder[PRT_PATH], found[PRT_PATH];
    for (;;) {
        int64_t n = 0, oldest = INT64_MAX;
        DIR *listing = opendir(path);
        if (!listing) return;
        for (struct dirent *item; (item = readdir(listing));) {
            PrtState other;
            if (strncmp(item->d_name, "step-", 5)) continue;
            snprintf(folder, sizeof folder, "%.3000s/%s", path, item->d_name);
            if (!prt_checkpoint_find(folder, found, &other, why, sizeof why) || other.run != state->run ||
                other.step > state->step)
                continue;
            n++;
            if (other.step < oldest) oldest = other.step;
        }
        closedir(listing);
        if (n <= keep) return;
        snprintf(folder, sizeof folder, "%.3000s/step-%08lld", path, (long long)oldest);
        remove_folder(folder);
        if (!access(folder, F_OK)) return; /* cannot be removed: not worth the run */
    }
}

static void close_saver(Saver *s, char **headers) {
    for (int kind = 0; kind < PRT_FILE_KINDS; kind++) {
        if (s->fds[kind] >= 0) close(s->fds[kind]);
        prt_table_free(&s->tables[kind]);
        free(headers[kind]);
    }
    free(s->files.data);
}

void prt_checkpoint_save(PrtRank *rank, const char *path, const PrtState *state, int64_t keep) {
    Saver s = {.rank = rank, .path = path, .fds = {-1, -1}};
    char *headers[PRT_FILE_KINDS];
    snprintf(s.folder, sizeof s.folder, "%.3000s/.saving", path);
    snprintf(s.final, sizeof s.final, "%.3000s/step-%08lld", path, (long long)state->step);
    for (int kind = 0; kind < PRT_FILE_KINDS; kind++) {
        headers[kind] = prt_need(rank, prt_table_write_all(rank->program, (PrtFileKind)kind, &s.tables[kind]));
    }
    check_finite(&s);
    agree(&s, rank->number == 0 ? make_files(&s, headers) : 0);
    agree(&s, open_files(&s));
    agree(&s, write_blocks(&s));
    int error = 0;
    for (int kind = 0; rank->number == 0 && kind < PRT_FILE_KINDS; kind++) {
        if (fsync(s.fds[kind]) && !error) error = errno;
    }
    agree(&s, error);
    for (int kind = 0; kind < PRT_FILE_KINDS; kind++) sum_file(&s, kind);
    agree(&s, rank->number == 0 ? finish(&s, state) : 0);
    if (rank->number == 0 && keep > 0) drop_oldest(path, state, keep);
    close_saver(&s, headers);
}

int64_t prt_checkpoint_bytes(const PrtProgram *program) {
    int64_t bytes = 0;
    for (int kind = 0; kind < PRT_FILE_KINDS; kind++) {
        PrtTable table;
        char *header = prt_table_write_all(program, (PrtFileKind)kind, &table);
        if (!header) return 0;
        bytes += table.file_bytes;
        prt_table_free(&table);
        free(header);
    }
    return bytes;
}
