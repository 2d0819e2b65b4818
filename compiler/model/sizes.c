/* Whole-number arithmetic of dimensions: common factors, divisors, products that cannot overflow. */
#include "model/plan_check.h"

static const int64_t LARGEST = INT64_C(1) << 62;

int64_t size_gcd(int64_t a, int64_t b) {
    while (b != 0) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

int64_t size_times(int64_t a, int64_t b) {
    int64_t product;
    return __builtin_mul_overflow(a, b, &product) || product > LARGEST ? LARGEST : product;
}

int64_t size_lcm(int64_t a, int64_t b) { return size_times(a / size_gcd(a, b), b); }

void sizes_divisors(Arena *arena, int64_t n, Sizes *out) {
    enum { MOST_TRIED = 1 << 20 }; /* beyond it only small divisors are found: no dimension is that large */
    Sizes high = {0};
    for (int64_t i = 1; i <= n / i && i <= MOST_TRIED; i++) {
        if (n % i != 0) continue;
        vec_push(arena, out, i);
        if (i != n / i) vec_push(arena, &high, n / i);
    }
    for (int i = high.n - 1; i >= 0; i--) vec_push(arena, out, high.at[i]);
}

const char *axes_text(Arena *arena, const Mesh *mesh, const int *axes, int n) {
    Text text = {.arena = arena};
    text_puts(&text, "");
    for (int i = 0; i < n; i++)
        text_printf(&text, "%s`%s` (%lld)", i > 0 ? " x " : "", mesh->axes[axes[i]].name,
                    (long long)mesh->axes[axes[i]].size);
    return text.at;
}
