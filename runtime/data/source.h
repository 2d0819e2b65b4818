/* Inside data/: files of ids or numbers, told apart by content, and streams made of parts of them. */
#ifndef PRT_SOURCE_H
#define PRT_SOURCE_H

#include "data/data.h"

typedef enum PrtElement {
    PRT_E_U8,
    PRT_E_I8,
    PRT_E_U16,
    PRT_E_I16,
    PRT_E_U32,
    PRT_E_I32,
    PRT_E_I64,
    PRT_E_F32,
    PRT_E_F64,
    PRT_E_COUNT
} PrtElement;
extern const char *const prt_element_name[PRT_E_COUNT];
int64_t prt_element_bytes(PrtElement element);

typedef struct PrtFile {
    char *path;
    const char *format; /* "text", "llm.c u16", ... */
    PrtElement element;
    int64_t start; /* byte of the first element */
    int64_t count; /* elements */
    int64_t rows;  /* arrays: the first dimension; elements of a row are count / rows */
    int n_dims;
    int64_t shape[PRT_MAX_DIMS];
    int fd; /* -1: not open now */
} PrtFile;

#define PRT_OPEN_FILES 64

typedef struct PrtFiles {
    int n, room;
    PrtFile *items;
    int open[PRT_OPEN_FILES]; /* indices of open files, in turn */
    int n_open, next;
    int n_empty; /* files without content: counted, not kept */
} PrtFiles;

/* Adds the files that a pattern names, sorted. kind as in PrtDataset. False with a reason. */
bool prt_files_add(PrtFiles *files, int kind, const char *pattern, const char *span, char *why, size_t size);
void prt_files_free(PrtFiles *files);
/* `bytes` bytes at element `first`: 0, an errno, or -1 for an early end. */
int prt_files_read(PrtFiles *files, int file, int64_t first, int64_t count, void *data);
/* Reads the header of an .npy file. */
bool prt_npy_header(PrtFile *file, int fd, int64_t file_bytes, char *why, size_t size);

/* Ids one after the other: parts of files. file -1 is one line feed, between two texts. */
typedef struct PrtPiece {
    int file;
    int64_t first, count; /* in the file */
    int64_t start;        /* in the stream */
} PrtPiece;
typedef struct PrtStream {
    int n, room;
    PrtPiece *pieces;
    int64_t total;
} PrtStream;

bool prt_stream_add(PrtStream *stream, int file, int64_t first, int64_t count);
/* Reads `count` ids from `position` and checks them. On failure false with a reason that names file and place. */
bool prt_stream_read(const PrtStream *stream, PrtFiles *files, int64_t position, int64_t count, int64_t limit,
                     int32_t *out, char *why, size_t size);

/* What a look at the files found. */
typedef struct PrtLook {
    int64_t looked, total;    /* bytes */
    int64_t carriage_returns; /* lines that end in CR LF */
    int64_t marks;            /* files that begin with a byte-order mark */
    int64_t invalid;          /* bytes that are not UTF-8 */
    const char *invalid_path;
    int64_t invalid_offset; /* of the first such byte */
} PrtLook;
/* Looks at all files, or at evenly spread parts of very large ones: ids below `limit`, and for text what PrtLook holds.
 */
bool prt_files_look(PrtFiles *files, bool text, int64_t limit, PrtLook *look, char *why, size_t size);

struct PrtData {
    const PrtProgram *program;
    int number;    /* which of the program's data sets */
    PrtData *next; /* the next one, or NULL */
    int64_t seed;
    int kind; /* as in PrtDataset */
    PrtFiles files;
    PrtStream stream[2]; /* by PrtSet; text and tokens */
    int n_columns;       /* arrays: the files of the training columns come first, then those of validation */
    const char **columns;
    bool own_validation; /* validation has files of its own */
    int64_t first_row[2], samples[2];
    PrtLook look;
};

#endif
