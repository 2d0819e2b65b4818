/* Finding checkpoints: what is complete, what is newest, who else uses the folder. */
#include "checkpoint/checkpoint.h"

#include "core/json.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_complete(const char *folder) {
    char path[2 * PRT_PATH];
    snprintf(path, sizeof path, "%s/COMPLETE", folder);
    return !access(path, F_OK);
}

static bool read_whole(const PrtJson *root, const char *name, int64_t low, int64_t *value) {
    const PrtJson *item = prt_json_get(root, name);
    if (!prt_json_is(item, PRT_JSON_NUMBER) || item->number < (double)low || item->number > 9e15) return false;
    *value = (int64_t)item->number;
    return true;
}

static void read_text(const PrtJson *root, const char *name, char *text, size_t size) {
    const char *value = prt_json_text(prt_json_get(root, name));
    snprintf(text, size, "%s", value ? value : "");
}

static bool read_state(const char *folder, PrtState *state, char *why, size_t size) {
    char path[2 * PRT_PATH], text[16384], number[40];
    snprintf(path, sizeof path, "%s/state.json", folder);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        snprintf(why, size, "cannot open `%s`: %s", path, strerror(errno));
        return false;
    }
    ssize_t n = pread(fd, text, sizeof text - 1, 0);
    close(fd);
    text[n > 0 ? n : 0] = 0;
    PrtJson *root = prt_json_parse(text);
    *state = (PrtState){0};
    int64_t version = 0;
    bool ok = read_whole(root, "version", 0, &version) && version == 1 && read_whole(root, "step", 0, &state->step) &&
              read_whole(root, "samples", 0, &state->samples) && read_whole(root, "seed", INT32_MIN, &state->seed) &&
              read_whole(root, "batch", 1, &state->batch);
    read_text(root, "run", number, sizeof number);
    state->run = strtoull(number, NULL, 16);
    read_text(root, "saved_at", number, sizeof number);
    state->saved_at = strtoll(number, NULL, 10);
    read_text(root, "hash", state->hash, sizeof state->hash);
    read_text(root, "plan", state->plan, sizeof state->plan);
    read_text(root, "source", state->source, sizeof state->source);
    prt_json_free(root);
    if (!ok) snprintf(why, size, "`%s` is damaged", path);
    return ok;
}

/* The newest complete checkpoint of a folder: the one saved last. Their number; -1 with a reason when one that should
 * be complete cannot be read. */
static int newest_of(const char *path, char *best, PrtState *state, int *incomplete, char *why, size_t size) {
    int n = 0;
    char folder[PRT_PATH];
    DIR *listing = opendir(path);
    if (!listing) return 0;
    for (struct dirent *item; (item = readdir(listing));) {
        PrtState other;
        if (strncmp(item->d_name, "step-", 5)) continue;
        snprintf(folder, sizeof folder, "%.3000s/%s", path, item->d_name);
        if (!is_complete(folder)) {
            ++*incomplete;
            continue;
        }
        if (!read_state(folder, &other, why, size)) {
            n = -1;
            break;
        }
        if (n++ && other.saved_at < state->saved_at) continue;
        *state = other;
        if (best) snprintf(best, PRT_PATH, "%s", folder);
    }
    closedir(listing);
    return n;
}

bool prt_checkpoint_find(const char *from, char *path, PrtState *state, char *why, size_t size) {
    struct stat about;
    if (stat(from, &about) || !S_ISDIR(about.st_mode)) {
        snprintf(why, size, "there is no folder `%s`", from);
        return false;
    }
    if (is_complete(from)) {
        snprintf(path, PRT_PATH, "%s", from);
        return read_state(from, state, why, size);
    }
    int incomplete = 0, n = newest_of(from, path, state, &incomplete, why, size);
    if (n > 0 || n < 0) return n > 0;
    if (incomplete)
        snprintf(why, size, "`%s` holds no complete checkpoint (%d were not finished)", from, incomplete);
    else
        snprintf(why, size, "`%s` holds no checkpoint", from);
    return false;
}

int prt_checkpoint_count(const char *path, PrtState *newest) {
    int incomplete = 0;
    char why[256];
    return newest_of(path, NULL, newest, &incomplete, why, sizeof why);
}

static bool make_folders(const char *path) {
    char part[PRT_PATH];
    snprintf(part, sizeof part, "%s", path);
    for (char *c = part + 1; *c; c++) {
        if (*c != '/') continue;
        *c = 0;
        if (mkdir(part, 0777) && errno != EEXIST) return false;
        *c = '/';
    }
    return !mkdir(part, 0777) || errno == EEXIST;
}

bool prt_checkpoint_claim(const char *path, int *lock, char *why, size_t size) {
    char file[2 * PRT_PATH], pid[32] = "";
    *lock = -1;
    if (!make_folders(path)) {
        snprintf(why, size, "cannot make the folder `%s` for checkpoints: %s", path, strerror(errno));
        return false;
    }
    if (access(path, W_OK | X_OK)) {
        snprintf(why, size, "cannot write checkpoints to `%s`: %s", path, strerror(errno));
        return false;
    }
    snprintf(file, sizeof file, "%s/.lock", path);
    *lock = open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (*lock < 0) {
        snprintf(why, size, "cannot write `%s`: %s", file, strerror(errno));
        return false;
    }
    if (flock(*lock, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK) {
        ssize_t n = pread(*lock, pid, sizeof pid - 1, 0);
        pid[n > 0 ? n : 0] = 0;
        snprintf(why, size, "`%s` is in use by another run (process %s); set another folder with `--set save.path=...`",
                 path, pid);
        close(*lock);
        *lock = -1;
        return false;
    }
    snprintf(pid, sizeof pid, "%d", (int)getpid());
    if (ftruncate(*lock, 0) || pwrite(*lock, pid, strlen(pid), 0) < 0) {
        snprintf(why, size, "cannot write `%s`: %s", file, strerror(errno));
        close(*lock);
        *lock = -1;
        return false;
    }
    return true;
}
