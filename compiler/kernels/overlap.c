/* Communication beside computation.
 *
 * In: kernels in the order of their graphs, where every collective is waited for at once. Out: collectives that are
 * *started* and later *finished*. A start only announces that the rank's operand is ready; a finish of an axis ends all
 * that was started on it. So several collectives meet once instead of each for itself, and a rank that is behind holds
 * nobody up in between. Four steps:
 *
 *   1. in a repeat, what a layer gathers of weights is started a layer ahead, into the other of two slots;
 *   2. in a repeat, sums that are only added to accumulators are started as soon as their operand is made, and added
 *      in the next round;
 *   3. accumulators that the update joins in place are joined by the last micro-batch's backward pass, layer by layer,
 *      while the layers before it go on;
 *   4. all other neighbouring collectives share one finish.
 *
 * All ranks of a group run the same list, so they still meet in the same order; on the stages' axis they do not, and
 * nothing there is split. A start never waits, so the proof of the schedule holds: each wait is for ranks that have
 * passed the same place. */
#include "kernels/overlap.h"

#include <stdlib.h>

typedef struct Overlap {
    RoleProgram *program;
    Arena *arena;
    const Schedule *schedule;
    int stage_axis;
} Overlap;

/* ---- what a kernel touches ----------------------------------------------------------------------- */

/* Whether the kernels may change places. */
static bool independent(const Kernel *a, const Kernel *b) {
    for (int i = 0; i < b->body.n; i++)
        if (!independent(a, b->body.at[i])) return false;
    for (int i = 0; i < a->n_refs; i++)
        for (int k = 0; k < b->n_refs; k++)
            if (a->refs[i].buffer == b->refs[k].buffer && (kernel_writes(a, i) || kernel_writes(b, k))) return false;
    return true;
}

static bool touches(const Kernel *kernel, const Buffer *buffer) {
    for (int i = 0; i < kernel->body.n; i++)
        if (touches(kernel->body.at[i], buffer)) return true;
    for (int i = 0; i < kernel->n_refs; i++)
        if (kernel->refs[i].buffer == buffer) return true;
    return false;
}

static bool writes(const Kernel *kernel, const Buffer *buffer) {
    for (int i = 0; i < kernel->body.n; i++)
        if (writes(kernel->body.at[i], buffer)) return true;
    for (int i = 0; i < kernel->n_refs; i++)
        if (kernel->refs[i].buffer == buffer && kernel_writes(kernel, i)) return true;
    return kernel->kind == KERNEL_REPEAT && kernel->index == buffer;
}

static void live_until(Buffer *buffer, int position) {
    if (buffer->persistent) return;
    if (position < buffer->first) buffer->first = position;
    if (position > buffer->last) buffer->last = position;
}

static bool splits(const Overlap *o, const Kernel *kernel) {
    return kernel->kind == KERNEL_COLLECTIVE && kernel->collective->axis != o->stage_axis;
}

/* ---- copies for another round --------------------------------------------------------------------- */

/* The kernel as it is outside of the repeat, for layer `index`. */
static Kernel *kernel_fixed(const Overlap *o, const Kernel *from, int64_t index) {
    Kernel *kernel = kernel_copy(o->arena, from);
    for (int i = 0; i < kernel->n_refs; i++) {
        BufferRef *ref = &kernel->refs[i];
        if (!ref->step) continue;
        int64_t slot = ref->scale * index + ref->shift;
        ref->offset += (ref->modulus ? slot % ref->modulus : slot) * ref->step;
        ref->step = ref->scale = ref->shift = ref->modulus = ref->depth = 0;
    }
    return kernel;
}

static Kernel *finish_kernel(const Overlap *o, int axis, const Kernel *beside) {
    Kernel *kernel = NEW(o->arena, Kernel);
    Name name = intern(o->program->session->names, arena_printf(o->arena, "%s.finish", beside->name));
    *kernel = (Kernel){.kind = KERNEL_FINISH, .name = name, .span = beside->span, .axis = axis};
    kernel->first = kernel->last = beside->last;
    return kernel;
}

static bool list_has(const KernelList *list, const Kernel *kernel) {
    for (int i = 0; i < list->n; i++)
        if (list->at[i] == kernel) return true;
    return false;
}

/* `list` without what is in `gone`. */
static KernelList list_without(const Overlap *o, const KernelList *list, const KernelList *gone) {
    KernelList kept = {0};
    for (int i = 0; i < list->n; i++)
        if (!list_has(gone, list->at[i])) vec_push(o->arena, &kept, list->at[i]);
    return kept;
}

/* ---- 1. gathered a layer ahead --------------------------------------------------------------------- */

/* A buffer of the body that can have two slots: made anew for each layer and used whole. */
static bool slots_fit(const Kernel *repeat, const Buffer *buffer) {
    if (buffer->persistent || buffer->home != repeat || buffer->flights > 1) return false;
    for (int i = 0; i < repeat->body.n; i++) {
        const Kernel *kernel = repeat->body.at[i];
        if (kernel->kind == KERNEL_REPEAT && touches(kernel, buffer)) return false;
        for (int k = 0; k < kernel->n_refs; k++)
            if (kernel->refs[k].buffer == buffer && kernel->refs[k].step) return false;
    }
    return true;
}

/* Adds the kernel, after those that make what it reads, when all of that comes from outside of the repeat. */
static bool add_fetch(const Overlap *o, const Kernel *repeat, Kernel *kernel, KernelList *fetch, int depth) {
    if (list_has(fetch, kernel)) return true;
    bool moves = kernel->kind == KERNEL_LOOP || splits(o, kernel);
    if (!moves || depth > 4 || kernel->rounds != ROUNDS_ALL) return false;
    int before = fetch->n;
    for (int i = 0; i < kernel->n_refs; i++) {
        Buffer *buffer = kernel->refs[i].buffer;
        bool made_here = false;
        for (int k = 0; k < repeat->body.n; k++) {
            Kernel *maker = repeat->body.at[k];
            if (!writes(maker, buffer)) continue;
            made_here = true;
            if (maker != kernel && !add_fetch(o, repeat, maker, fetch, depth + 1)) goto stays;
        }
        if (made_here ? !slots_fit(repeat, buffer) : !buffer->persistent) goto stays;
    }
    vec_push(o->arena, fetch, kernel);
    return true;
stays:
    fetch->n = before;
    return false;
}

static void give_slots(const Kernel *repeat, Buffer *buffer) {
    int64_t one = (buffer->bytes + 63) / 64 * 64;
    for (int i = 0; i < repeat->body.n; i++) {
        Kernel *kernel = repeat->body.at[i];
        for (int k = 0; k < kernel->n_refs; k++) {
            BufferRef *ref = &kernel->refs[k];
            if (ref->buffer != buffer) continue;
            ref->step = one, ref->scale = 1, ref->shift = 0, ref->modulus = 2, ref->depth = 1;
        }
    }
    buffer->bytes = 2 * one;
    buffer->home = NULL;
    live_until(buffer, repeat->first);
    live_until(buffer, repeat->last);
}

static void finish_axes(const Overlap *o, const KernelList *started, const Kernel *beside, KernelList *out) {
    for (int axis = 0; axis < o->program->mesh->n; axis++)
        for (int i = 0; i < started->n; i++)
            if (started->at[i]->kind == KERNEL_COLLECTIVE && started->at[i]->collective->axis == axis) {
                vec_push(o->arena, out, finish_kernel(o, axis, beside));
                break;
            }
}

/* Moves the fetches out of the body: `before` gets those of the first layer, `top` those of the next one. */
static void fetch_ahead(const Overlap *o, Kernel *repeat, KernelList *before, KernelList *top) {
    KernelList fetch = {0};
    for (int i = 0; i < repeat->body.n; i++) {
        Kernel *kernel = repeat->body.at[i];
        if (splits(o, kernel) && kernel->collective->op == OP_ALL_GATHER) add_fetch(o, repeat, kernel, &fetch, 0);
    }
    if (!fetch.n) return;
    for (int i = 0; i < fetch.n; i++)
        for (int k = 0; k < fetch.at[i]->n_refs; k++) {
            Buffer *buffer = fetch.at[i]->refs[k].buffer;
            if (kernel_writes(fetch.at[i], k) && buffer->home == repeat) give_slots(repeat, buffer);
        }
    repeat->body = list_without(o, &repeat->body, &fetch);
    finish_axes(o, &fetch, repeat, top);
    for (int i = 0; i < fetch.n; i++) {
        Kernel *kernel = fetch.at[i];
        kernel->begins = kernel->kind == KERNEL_COLLECTIVE;
        Kernel *first = kernel_fixed(o, kernel, repeat->descending ? repeat->count - 1 : 0);
        Kernel *next = kernel_shifted(o->arena, kernel, repeat->descending ? -1 : 1, ROUNDS_BUT_LAST);
        first->first = first->last = repeat->first;
        vec_push(o->arena, before, first);
        vec_push(o->arena, top, next);
    }
}

/* ---- 2. added in the next round --------------------------------------------------------------------- */

/* The kernels that add the collective's result to accumulators: nothing else may read it, and nothing else in the body
 * may read those. */
static bool add_users(const Overlap *o, const Kernel *repeat, const Kernel *collective, KernelList *users) {
    const Buffer *out = collective->refs[1].buffer;
    if (collective->refs[1].step || out->persistent || out->home != repeat || out->flights > 1) return false;
    if (collective->refs[0].buffer->persistent || collective->refs[0].buffer->home != repeat) return false;
    int before = users->n;
    for (int i = 0; i < repeat->body.n; i++) {
        Kernel *kernel = repeat->body.at[i];
        if (kernel == collective || !touches(kernel, out)) continue;
        bool makes_operand = collective->refs[0].buffer == out && writes(kernel, out) && !list_has(users, kernel);
        if (makes_operand && kernel->first < collective->first) continue;
        bool adds = (kernel->kind == KERNEL_LOOP || kernel->kind == KERNEL_EXACT) && kernel->first > collective->first;
        for (int k = 0; k < kernel->n_refs && adds; k++) {
            const BufferRef *ref = &kernel->refs[k];
            if (ref->buffer == out) continue;
            adds = ref->buffer->persistent && ref->buffer->kind == MEM_GRADIENT && !ref->modulus;
            for (int j = 0; j < repeat->body.n && adds; j++)
                if (repeat->body.at[j] != kernel && touches(repeat->body.at[j], ref->buffer)) adds = false;
        }
        if (!adds) {
            users->n = before;
            return false;
        }
        if (!list_has(users, kernel)) vec_push(o->arena, users, kernel);
    }
    return users->n > before;
}

/* Moves the additions: `top` gets those of the layer before, `after` those of the last one. */
static void add_later(const Overlap *o, Kernel *repeat, KernelList *top, KernelList *after) {
    KernelList users = {0}, started = {0};
    for (int i = 0; i < repeat->body.n; i++) {
        Kernel *kernel = repeat->body.at[i];
        bool sums = splits(o, kernel) && !kernel->begins &&
                    (kernel->collective->op == OP_REDUCE_SCATTER || kernel->collective->op == OP_ALL_REDUCE);
        if (!sums || !add_users(o, repeat, kernel, &users)) continue;
        kernel->begins = true;
        vec_push(o->arena, &started, kernel);
        for (int k = 0; k < 2; k++) {
            live_until(kernel->refs[k].buffer, repeat->first);
            live_until(kernel->refs[k].buffer, repeat->last);
        }
    }
    if (!started.n) return;
    repeat->body = list_without(o, &repeat->body, &users);
    KernelList finishes = {0};
    finish_axes(o, &started, repeat, &finishes);
    for (int i = 0; i < finishes.n; i++) {
        vec_push(o->arena, top, finishes.at[i]);
        vec_push(o->arena, after, finishes.at[i]);
    }
    for (int i = 0; i < users.n; i++) {
        vec_push(o->arena, top, kernel_shifted(o->arena, users.at[i], repeat->descending ? 1 : -1, ROUNDS_BUT_FIRST));
        Kernel *last = kernel_fixed(o, users.at[i], repeat->descending ? 0 : repeat->count - 1);
        last->first = last->last = repeat->last;
        vec_push(o->arena, after, last);
    }
}

/* Collectives (those that start, or `all`) go up to where their operand was made, but not past another on their axis.
 */
static void start_early(const Overlap *o, KernelList *list, bool all) {
    for (int i = 1; i < list->n; i++) {
        Kernel *kernel = list->at[i];
        if (!splits(o, kernel) || !(all || kernel->begins) || kernel->rounds != ROUNDS_ALL) continue;
        int at = i;
        while (at > 0 && independent(kernel, list->at[at - 1])) {
            KernelKind before = list->at[at - 1]->kind; /* a wait frees memory that another stage still reads */
            if (before == KERNEL_FINISH || before == KERNEL_REPEAT || before == KERNEL_TRANSFER) break;
            list->at[at] = list->at[at - 1];
            at--;
        }
        list->at[at] = kernel;
        if (at < i) {
            kernel->first = kernel->last = at > 0 ? list->at[at - 1]->last : list->at[1]->first;
            for (int k = 0; k < 2; k++) live_until(kernel->refs[k].buffer, kernel->first);
        }
    }
}

static void pipeline_repeat(const Overlap *o, Kernel *repeat, KernelList *before, KernelList *after) {
    if (repeat->count < 2) return;
    KernelList top = {0}, later = {0};
    add_later(o, repeat, &later, after);
    fetch_ahead(o, repeat, before, &top);
    for (int i = 0; i < later.n; i++) { /* one finish of an axis does */
        bool known = false;
        for (int k = 0; k < top.n; k++)
            known |= later.at[i]->kind == KERNEL_FINISH && top.at[k]->kind == KERNEL_FINISH &&
                     top.at[k]->axis == later.at[i]->axis;
        if (!known) vec_push(o->arena, &top, later.at[i]);
    }
    start_early(o, &repeat->body, false);
    for (int i = 0; i < repeat->body.n; i++) vec_push(o->arena, &top, repeat->body.at[i]);
    repeat->body = top;
}

static void pipeline_repeats(const Overlap *o, KernelList *list) {
    KernelList all = {0};
    for (int i = 0; i < list->n; i++) {
        Kernel *kernel = list->at[i];
        KernelList before = {0}, after = {0};
        if (kernel->kind == KERNEL_REPEAT) pipeline_repeat(o, kernel, &before, &after);
        for (int k = 0; k < before.n; k++) vec_push(o->arena, &all, before.at[k]);
        vec_push(o->arena, &all, kernel);
        for (int k = 0; k < after.n; k++) vec_push(o->arena, &all, after.at[k]);
    }
    *list = all;
}

/* ---- 3. accumulators are joined by the last backward pass ------------------------------------------- */

static Entry *entry_named(RoleProgram *program, const char *name) {
    for (int i = 0; i < program->entries.n; i++)
        if (strcmp(program->entries.at[i].name, name) == 0) return &program->entries.at[i];
    return NULL;
}

/* The micro-batch that runs the entry last, counted from 1; 0: no action of the schedule is it. */
static int64_t last_micro(const Overlap *o, const Entry *entry) {
    const RoleSchedule *role = &o->schedule->roles[o->program->role];
    size_t length = strcspn(entry->name, ".");
    int chunk = entry->name[length] ? atoi(entry->name + length + 1) : 0;
    int64_t micro = 0;
    for (int i = 0; i < role->actions.n; i++) {
        const Action *action = &role->actions.at[i];
        const char *kind = action_text(action->kind);
        bool same = strlen(kind) == length && strncmp(kind, entry->name, length) == 0 && action->chunk == chunk;
        if (same && action->micro >= 0) micro = action->micro + 1;
    }
    return micro;
}

/* The entry of a micro-batch that alone writes the accumulator, or NULL. */
static Entry *only_writer(const Overlap *o, const Buffer *buffer) {
    Entry *found = NULL;
    for (int e = 0; e < o->program->entries.n; e++) {
        Entry *entry = &o->program->entries.at[e];
        if (strcmp(entry->name, "begin") == 0 || strcmp(entry->name, "update") == 0) continue;
        for (int i = 0; i < entry->body.n; i++) {
            if (!touches(entry->body.at[i], buffer)) continue;
            if (found && found != entry) return NULL;
            found = entry;
            break;
        }
    }
    return found;
}

/* The accumulator's part that a layer adds to: all uses in the body name the same one, and the layers' parts are the
 * whole. */
static bool layer_part(const Kernel *repeat, const Buffer *buffer, BufferRef *part, int *last) {
    *last = -1;
    for (int i = 0; i < repeat->body.n; i++) {
        const Kernel *kernel = repeat->body.at[i];
        if (kernel->kind == KERNEL_REPEAT && touches(kernel, buffer)) return false;
        for (int k = 0; k < kernel->n_refs; k++) {
            const BufferRef *ref = &kernel->refs[k];
            if (ref->buffer != buffer) continue;
            if (kernel->rounds != ROUNDS_ALL || ref->modulus || ref->scale != 1 || ref->shift || ref->offset)
                return false;
            if (ref->step * repeat->count != buffer->bytes) return false;
            *part = *ref;
            *last = i;
        }
    }
    return *last >= 0;
}

static void list_insert(const Overlap *o, KernelList *list, int at, Kernel *kernel) {
    vec_push(o->arena, list, kernel);
    for (int i = list->n - 1; i > at; i--) list->at[i] = list->at[i - 1];
    list->at[at] = kernel;
}

/* Starts the update's collective in the backward pass instead. False: it stays where it is. */
static bool join_in_backward(const Overlap *o, const Kernel *collective) {
    Buffer *buffer = collective->refs[0].buffer;
    Entry *entry = only_writer(o, buffer);
    int64_t micro = entry ? last_micro(o, entry) : 0;
    if (!micro) return false;
    int at = entry->body.n - 1;
    while (!touches(entry->body.at[at], buffer)) at--;
    Kernel *kernel = kernel_copy(o->arena, collective), *repeat = entry->body.at[at];
    kernel->begins = true;
    kernel->micro = micro;
    if (repeat->kind != KERNEL_REPEAT) {
        kernel->first = kernel->last = repeat->last;
        list_insert(o, &entry->body, at + 1, kernel);
        return true;
    }
    for (int i = 0; i < at; i++)
        if (touches(entry->body.at[i], buffer)) return false;
    BufferRef part;
    int last;
    if (!layer_part(repeat, buffer, &part, &last)) return false;
    kernel->refs[0] = kernel->refs[1] = part;
    kernel->collective = NEW(o->arena, Collective);
    *kernel->collective = *collective->collective;
    kernel->collective->elements = part.step / dtype_bytes(kernel->collective->dtype);
    kernel->first = kernel->last = repeat->body.at[last]->last;
    list_insert(o, &repeat->body, last + 1, kernel);
    return true;
}

static void join_accumulators(const Overlap *o) {
    Entry *update = entry_named(o->program, "update");
    if (!update) return;
    KernelList gone = {0}, finishes = {0};
    for (int i = 0; i < update->body.n; i++) {
        Kernel *kernel = update->body.at[i];
        if (!splits(o, kernel) || kernel->collective->op != OP_ALL_REDUCE) continue;
        const BufferRef *in = &kernel->refs[0];
        bool whole = in->buffer == kernel->refs[1].buffer && in->buffer->persistent &&
                     in->buffer->kind == MEM_GRADIENT && !in->step && !in->offset &&
                     kernel->collective->elements * dtype_bytes(kernel->collective->dtype) == in->buffer->bytes;
        for (int k = 0; k < i && whole; k++) whole = !touches(update->body.at[k], in->buffer);
        if (whole && join_in_backward(o, kernel)) vec_push(o->arena, &gone, kernel);
    }
    if (!gone.n) return;
    finish_axes(o, &gone, update->body.at[0], &finishes);
    KernelList rest = list_without(o, &update->body, &gone);
    for (int i = 0; i < rest.n; i++) vec_push(o->arena, &finishes, rest.at[i]);
    update->body = finishes;
}

/* ---- 4. neighbours share a finish --------------------------------------------------------------------- */

/* Ends what is in flight on the axis, as the last thing before the next kernel of `out`. */
static void finish_flights(const Overlap *o, Flights *flights, int axis, KernelList *out) {
    Kernel *beside = vec_last(out);
    int n = 0, left = 0;
    bool ends_here = false;
    for (int i = 0; i < flights->n; i++) {
        Flight flight = flights->at[i];
        if (flight.kernel->collective->axis != axis) {
            flights->at[left++] = flight;
            continue;
        }
        n++;
        ends_here = flight.ends_here;
        for (int k = 0; k < 2; k++) live_until(flight.kernel->refs[k].buffer, beside->last);
    }
    flights->n = left;
    if (n == 1 && ends_here && beside->begins && beside->collective->axis == axis)
        beside->begins = false; /* nothing to share */
    else
        vec_push(o->arena, out, finish_kernel(o, axis, beside));
}

static void finish_conflicts(const Overlap *o, Flights *flights, const Kernel *next, KernelList *out) {
    for (int i = 0; i < flights->n; i++)
        if (kernel_conflicts(next, flights->at[i].kernel)) {
            finish_flights(o, flights, flights->at[i].kernel->collective->axis, out);
            i = -1;
        }
}

/* What the kernel finishes first of all keeps its memory until then: a repeat does so before its first round begins. */
static void end_flights(Flights *flights, const Kernel *kernel) {
    for (int i = 0; i < flights->n; i++)
        for (int k = 0; k < 2; k++)
            if (kernel_ends(kernel, flights->at[i].kernel->collective->axis))
                live_until(flights->at[i].kernel->refs[k].buffer, kernel->first);
    flights_end(flights, kernel);
}

static void share_finishes(const Overlap *o, KernelList *list) {
    KernelList out = {0};
    Flights flights = {0};
    for (int i = 0; i < list->n; i++) {
        Kernel *kernel = list->at[i];
        if (kernel->kind == KERNEL_REPEAT) share_finishes(o, &kernel->body);
        end_flights(&flights, kernel);
        finish_conflicts(o, &flights, kernel, &out);
        if (splits(o, kernel)) {
            vec_push(o->arena, &flights, (Flight){kernel, !kernel->begins});
            kernel->begins = true;
        }
        vec_push(o->arena, &out, kernel);
    }
    for (int i = 0; i < flights.n; i++)
        if (flights.at[i].ends_here) {
            finish_flights(o, &flights, flights.at[i].kernel->collective->axis, &out);
            i = -1;
        }
    *list = out;
}

void kernels_overlap(RoleProgram *program, const Schedule *schedule, int stage_axis) {
    Overlap o = {.program = program, .arena = program->arena, .schedule = schedule, .stage_axis = stage_axis};
    if (!program->mesh || mesh_ranks(program->mesh) == 1) return;
    for (int i = 0; i < program->entries.n; i++) pipeline_repeats(&o, &program->entries.at[i].body);
    join_accumulators(&o);
    Entry *update = entry_named(program, "update");
    if (update) start_early(&o, &update->body, true);
    for (int i = 0; i < program->entries.n; i++) share_finishes(&o, &program->entries.at[i].body);
}
