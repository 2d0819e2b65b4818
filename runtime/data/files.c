/* From patterns to files, their format told by content, never by the name: llm.c's two magics, NumPy, or headerless
 * 16-bit ids (nanoGPT). Known formats that are not read are refused by name. */
#include "data/source.h"

#include "core/util.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *const prt_element_name[PRT_E_COUNT] = {"u8", "i8", "u16", "i16", "u32", "i32", "i64", "f32", "f64"};

int64_t prt_element_bytes(PrtElement element) {
    static const int8_t bytes[PRT_E_COUNT] = {1, 1, 2, 2, 4, 4, 8, 4, 8};
    return bytes[element];
}

#define LLM_C_U16 20240520
#define LLM_C_U32 20240801
#define LLM_C_HEADER 1024

static const struct {
    const char *bytes;
    int n;
    const char *what;
} foreign[] = {
    {"\x1f\x8b", 2, "gzip data; unpack it first"},
    {"\x28\xb5\x2f\xfd", 4, "zstd data; unpack it first"},
    {"PK\x03\x04", 4, "a zip or .npz archive; unpack it first"},
    {"MMIDIDX", 7, "the index of a Megatron data set, which is not read yet"},
};

static bool llm_c(PrtFile *file, const unsigned char *head, int64_t bytes, char *why, size_t size) {
    int32_t field[3];
    memcpy(field, head, sizeof field);
    bool wide = field[0] == LLM_C_U32;
    int width = wide ? 4 : 2, version = wide ? 7 : 1;
    if (field[1] != version) {
        snprintf(why, size, "`%s`: version %d of the llm.c format (magic %d) is not read, only %d", file->path,
                 field[1], field[0], version);
        return false;
    }
    int64_t need = LLM_C_HEADER + (int64_t)field[2] * width;
    if (field[2] < 0 || need != bytes) {
        snprintf(why, size, "`%s` is %s: its header promises %d ids, that is %lld bytes, it has %lld", file->path,
                 bytes < need ? "truncated" : "corrupt", field[2], (long long)need, (long long)bytes);
        return false;
    }
    file->format = wide ? "llm.c, 32-bit ids" : "llm.c, 16-bit ids";
    file->element = wide ? PRT_E_U32 : PRT_E_U16;
    file->start = LLM_C_HEADER;
    file->count = field[2];
    return true;
}

static bool sniff(PrtFile *file, int kind, int fd, int64_t bytes, char *why, size_t size) {
    unsigned char head[12] = {0};
    int64_t n = bytes < 12 ? bytes : 12;
    int error = prt_pread_all(fd, head, n, 0);
    if (error) {
        snprintf(why, size, "cannot read `%s`: %s", file->path, error < 0 ? "it ends early" : strerror(error));
        return false;
    }
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
        if (n < foreign[i].n || memcmp(head, foreign[i].bytes, (size_t)foreign[i].n)) continue;
        snprintf(why, size, "`%s` is %s", file->path, foreign[i].what);
        return false;
    }
    int32_t magic;
    memcpy(&magic, head, sizeof magic);
    bool is_llm_c = bytes >= LLM_C_HEADER && (magic == LLM_C_U16 || magic == LLM_C_U32);
    bool is_npy = n >= 8 && !memcmp(head, "\x93NUMPY", 6);
    if (kind == PRT_DATA_TEXT) {
        if (is_llm_c || is_npy) {
            snprintf(why, size, "`%s` holds token ids (%s), not text: write `data tokens(...)`", file->path,
                     is_npy ? ".npy" : "llm.c");
            return false;
        }
        file->format = "text";
        file->element = PRT_E_U8;
        file->count = bytes;
        return true;
    }
    if (is_npy) {
        file->format = ".npy";
        return prt_npy_header(file, fd, bytes, why, size);
    }
    if (kind == PRT_DATA_ARRAYS) {
        snprintf(why, size, "`%s` is not an .npy file", file->path);
        return false;
    }
    if (is_llm_c) return llm_c(file, head, bytes, why, size);
    if (bytes % 2) {
        snprintf(
            why, size,
            "`%s` is no known token file: no llm.c or .npy header, and %lld bytes are no whole number of 16-bit ids",
            file->path, (long long)bytes);
        return false;
    }
    file->format = "headerless, 16-bit ids";
    file->element = PRT_E_U16;
    file->count = bytes / 2;
    return true;
}

static bool check_ids(const PrtFile *file, int kind, char *why, size_t size) {
    if (kind != PRT_DATA_TOKENS || file->element <= PRT_E_I64) return true;
    snprintf(why, size, "`%s` holds %s, not token ids", file->path, prt_element_name[file->element]);
    return false;
}

static bool add_file(PrtFiles *files, int kind, const char *path, char *why, size_t size) {
    struct stat about;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &about)) {
        snprintf(why, size, "cannot open `%s`: %s", path, strerror(errno));
        if (fd >= 0) close(fd);
        return false;
    }
    if (!S_ISREG(about.st_mode)) {
        snprintf(why, size, "`%s` is %s, not a file%s", path,
                 S_ISDIR(about.st_mode) ? "a directory" : "a device or pipe",
                 S_ISDIR(about.st_mode) ? ": name the files in it, as `directory/*`" : "");
        close(fd);
        return false;
    }
    PrtFile file = {.path = strdup(path), .fd = -1, .rows = 1};
    bool ok = file.path != NULL;
    if (!ok) snprintf(why, size, "out of memory");
    if (ok && files->n == files->room) {
        int room = files->room ? 2 * files->room : 16;
        PrtFile *items = realloc(files->items, (size_t)room * sizeof *items);
        ok = items != NULL;
        if (!ok) snprintf(why, size, "out of memory");
        if (items) files->items = items;
        if (items) files->room = room;
    }
    bool empty = about.st_size == 0;
    ok = ok && (empty || (sniff(&file, kind, fd, about.st_size, why, size) && check_ids(&file, kind, why, size)));
    close(fd);
    if (!ok || empty || (!file.count && kind != PRT_DATA_ARRAYS)) {
        if (ok) files->n_empty++;
        free(file.path);
        return ok;
    }
    files->items[files->n++] = file;
    return true;
}

bool prt_files_add(PrtFiles *files, int kind, const char *pattern, const char *span, char *why, size_t size) {
    glob_t found = {0};
    int error = glob(pattern, GLOB_MARK, NULL, &found);
    if (error) {
        char here[1024];
        if (!getcwd(here, sizeof here)) here[0] = 0;
        snprintf(why, size, "no file matches `%s`%s%s (looked from `%s`)", pattern, *span ? ", named at " : "", span,
                 here);
        globfree(&found);
        return false;
    }
    bool ok = true, pattern_has_star = strpbrk(pattern, "*?[") != NULL;
    for (size_t i = 0; ok && i < found.gl_pathc; i++) {
        const char *path = found.gl_pathv[i];
        size_t n = strlen(path);
        if (pattern_has_star && n && path[n - 1] == '/') continue; /* directories beside the files */
        ok = add_file(files, kind, path, why, size);
    }
    globfree(&found);
    return ok;
}

void prt_files_free(PrtFiles *files) {
    for (int i = 0; i < files->n; i++) {
        if (files->items[i].fd >= 0) close(files->items[i].fd);
        free(files->items[i].path);
    }
    free(files->items);
}

/* At most PRT_OPEN_FILES stay open, so that ten thousand small files are no trouble. */
static int open_file(PrtFiles *files, int index) {
    PrtFile *file = &files->items[index];
    if (file->fd >= 0) return 0;
    file->fd = open(file->path, O_RDONLY | O_CLOEXEC);
    if (file->fd < 0) return errno;
    if (files->n_open < PRT_OPEN_FILES) {
        files->open[files->n_open++] = index;
    } else {
        PrtFile *oldest = &files->items[files->open[files->next]];
        close(oldest->fd);
        oldest->fd = -1;
        files->open[files->next] = index;
        files->next = (files->next + 1) % PRT_OPEN_FILES;
    }
    return 0;
}

int prt_files_read(PrtFiles *files, int index, int64_t first, int64_t count, void *data) {
    int error = open_file(files, index);
    if (error) return error;
    const PrtFile *file = &files->items[index];
    int64_t width = prt_element_bytes(file->element);
    return prt_pread_all(file->fd, data, count * width, file->start + first * width);
}
