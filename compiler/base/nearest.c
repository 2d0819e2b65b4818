/* The nearest name to a misspelt one, by edit distance with transpositions (optimal string alignment). */
#include "base/base.h"

enum { LONGEST_NAME = 64 };

static int smaller(int a, int b) { return a < b ? a : b; }

/* Insertions, deletions, substitutions and swaps of neighbours that turn `a` into `b`. */
static int edit_distance(const char *a, int n, const char *b, int m) {
    int rows[3][LONGEST_NAME + 1];
    int *before = rows[0], *last = rows[1], *row = rows[2];
    for (int j = 0; j <= m; j++) last[j] = j;
    for (int i = 1; i <= n; i++) {
        row[0] = i;
        for (int j = 1; j <= m; j++) {
            int best = smaller(smaller(last[j], row[j - 1]) + 1, last[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) best = smaller(best, before[j - 2] + 1);
            row[j] = best;
        }
        int *recycled = before;
        before = last;
        last = row;
        row = recycled;
    }
    return last[m];
}

/* People get the beginning of a word right. */
static int common_prefix(const char *a, const char *b) {
    int n = 0;
    while (a[n] && a[n] == b[n]) n++;
    return n;
}

Name nearest_name(Name word, const Name *candidates, int n) {
    size_t length = strlen(word);
    if (length > LONGEST_NAME) return NULL;
    int limit = length < 6 ? 1 : (int)length / 3, best = limit + 1;
    Name nearest = NULL;
    for (int i = 0; i < n; i++) {
        size_t other = candidates[i] ? strlen(candidates[i]) : 0;
        if (!other || other > LONGEST_NAME) continue;
        int distance = edit_distance(word, (int)length, candidates[i], (int)other);
        bool nothing_in_common = distance >= (int)(length > other ? length : other);
        if (distance > best || nothing_in_common) continue;
        if (distance == best && (!nearest || common_prefix(word, candidates[i]) <= common_prefix(word, nearest)))
            continue;
        best = distance;
        nearest = candidates[i];
    }
    return nearest;
}
