/* Units: spellings to factors, and unit arithmetic.
 *
 * In: the spelling that stands after a number ("GB/s"). Out: exponents of bytes, seconds, watts and operations, and the
 * factor to these base units. Decimal prefixes are powers of 1000 and binary ones powers of 1024: `GB` and `GiB` are
 * different sizes and never mixed up. Rates in bits are an eighth of those in bytes. */
#include "model/resolve.h"

typedef struct UnitInfo {
    const char *spelling;
    Unit unit;
    double factor;
} UnitInfo;

#define KI 1024.0
static const UnitInfo unit_table[] = {
    {"bytes", {1, 0, 0, 0}, 1},
    {"B", {1, 0, 0, 0}, 1},
    {"KB", {1, 0, 0, 0}, 1e3},
    {"kB", {1, 0, 0, 0}, 1e3},
    {"MB", {1, 0, 0, 0}, 1e6},
    {"GB", {1, 0, 0, 0}, 1e9},
    {"TB", {1, 0, 0, 0}, 1e12},
    {"PB", {1, 0, 0, 0}, 1e15},
    {"KiB", {1, 0, 0, 0}, KI},
    {"MiB", {1, 0, 0, 0}, KI *KI},
    {"GiB", {1, 0, 0, 0}, KI *KI *KI},
    {"TiB", {1, 0, 0, 0}, KI *KI *KI *KI},
    {"b/s", {1, -1, 0, 0}, 1.0 / 8},
    {"Kb/s", {1, -1, 0, 0}, 1e3 / 8},
    {"kb/s", {1, -1, 0, 0}, 1e3 / 8},
    {"Mb/s", {1, -1, 0, 0}, 1e6 / 8},
    {"Gb/s", {1, -1, 0, 0}, 1e9 / 8},
    {"Tb/s", {1, -1, 0, 0}, 1e12 / 8},
    {"B/s", {1, -1, 0, 0}, 1},
    {"KB/s", {1, -1, 0, 0}, 1e3},
    {"kB/s", {1, -1, 0, 0}, 1e3},
    {"MB/s", {1, -1, 0, 0}, 1e6},
    {"GB/s", {1, -1, 0, 0}, 1e9},
    {"TB/s", {1, -1, 0, 0}, 1e12},
    {"MiB/s", {1, -1, 0, 0}, KI *KI},
    {"GiB/s", {1, -1, 0, 0}, KI *KI *KI},
    {"TiB/s", {1, -1, 0, 0}, KI *KI *KI *KI},
    {"Hz", {0, -1, 0, 0}, 1},
    {"KHz", {0, -1, 0, 0}, 1e3},
    {"kHz", {0, -1, 0, 0}, 1e3},
    {"MHz", {0, -1, 0, 0}, 1e6},
    {"GHz", {0, -1, 0, 0}, 1e9},
    {"W", {0, 0, 1, 0}, 1},
    {"KW", {0, 0, 1, 0}, 1e3},
    {"kW", {0, 0, 1, 0}, 1e3},
    {"s", {0, 1, 0, 0}, 1},
    {"ms", {0, 1, 0, 0}, 1e-3},
    {"us", {0, 1, 0, 0}, 1e-6},
    {"ns", {0, 1, 0, 0}, 1e-9},
    {"FLOPS", {0, -1, 0, 1}, 1},
    {"GFLOPS", {0, -1, 0, 1}, 1e9},
    {"TFLOPS", {0, -1, 0, 1}, 1e12},
    {"PFLOPS", {0, -1, 0, 1}, 1e15},
    {"FLOP/s", {0, -1, 0, 1}, 1},
    {"GFLOP/s", {0, -1, 0, 1}, 1e9},
    {"TFLOP/s", {0, -1, 0, 1}, 1e12},
    {"PFLOP/s", {0, -1, 0, 1}, 1e15},
};
enum { N_UNITS = sizeof unit_table / sizeof unit_table[0] };

bool unit_find(const char *spelling, Unit *unit, double *factor) {
    for (int i = 0; i < N_UNITS; i++) {
        if (strcmp(unit_table[i].spelling, spelling) == 0) {
            *unit = unit_table[i].unit;
            *factor = unit_table[i].factor;
            return true;
        }
    }
    return false;
}

bool unit_equal(Unit a, Unit b) {
    return a.bytes == b.bytes && a.seconds == b.seconds && a.watts == b.watts && a.flops == b.flops;
}

const char *unit_text(Arena *arena, Unit unit) {
    static const struct {
        Unit unit;
        const char *text;
    } common[] = {
        {{0, 0, 0, 0}, "a plain number"},     {{1, 0, 0, 0}, "a size in bytes"},   {{1, -1, 0, 0}, "a rate in bytes/s"},
        {{0, -1, 0, 0}, "a frequency in Hz"}, {{0, 1, 0, 0}, "a time in seconds"}, {{0, 0, 1, 0}, "a power in W"},
        {{0, -1, 0, 1}, "a speed in FLOP/s"}, {{0, 0, 0, 1}, "a count of FLOP"},   {{0, 1, 1, 0}, "an energy in W s"},
    };
    for (size_t i = 0; i < sizeof common / sizeof common[0]; i++)
        if (unit_equal(unit, common[i].unit)) return common[i].text;
    Text text = {.arena = arena};
    text_puts(&text, "a quantity in");
    const char *const names[] = {"bytes", "s", "W", "FLOP"};
    const int powers[] = {unit.bytes, unit.seconds, unit.watts, unit.flops};
    for (int i = 0; i < 4; i++) {
        if (powers[i] == 1)
            text_printf(&text, " %s", names[i]);
        else if (powers[i] != 0)
            text_printf(&text, " %s^%d", names[i], powers[i]);
    }
    return text.at;
}

const char *unit_spelling(int index) { return index < N_UNITS ? unit_table[index].spelling : NULL; }
