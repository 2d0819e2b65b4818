/* Dimensions, shapes, types on mesh axes, and what one rank holds of a value.
 *
 * Shapes name global dimensions; a rank's part is derived here from the types: every axis that cuts a dimension divides
 * it, outermost axis first. Each axis takes its part of the sequence of positions that the axes before it leave: one
 * block of it, or two (balanced). */
#include "ir/ir.h"

const char *const dtype_name[DT_COUNT] = {
    [DT_F32] = "f32", [DT_F64] = "f64", [DT_BF16] = "bf16", [DT_F16] = "f16",
    [DT_I32] = "i32", [DT_U32] = "u32", [DT_BOOL] = "bool", [DT_EXACT] = "exact",
};

const char *const tensor_class_name[CLASS_COUNT] = {
    [CLASS_WEIGHT] = "weight", [CLASS_MOMENT] = "moment", [CLASS_GRADIENT] = "gradient", [CLASS_DATA] = "data",
    [CLASS_SCALAR] = "scalar", [CLASS_RESULT] = "result", [CLASS_CACHE] = "cache",       [CLASS_STAGE] = "stage",
};

const char *const reduce_name[4] = {
    [REDUCE_SUM] = "sum", [REDUCE_MAX] = "max", [REDUCE_MIN] = "min", [REDUCE_OR] = "or"};
const char *const layout_name[4] = {
    [LAYOUT_BLOCK] = "block", [LAYOUT_BALANCED] = "balanced", [LAYOUT_TABLE] = "table", [LAYOUT_FLAT] = "flat"};

int64_t dtype_bytes(DType dtype) {
    static const int64_t bytes[DT_COUNT] = {[DT_F32] = 4, [DT_F64] = 8, [DT_BF16] = 2, [DT_F16] = 2,
                                            [DT_I32] = 4, [DT_U32] = 4, [DT_BOOL] = 1, [DT_EXACT] = 16};
    return bytes[dtype];
}

bool dtype_is_float(DType dtype) { return dtype == DT_F32 || dtype == DT_F64 || dtype == DT_BF16 || dtype == DT_F16; }

/* ---- shapes ------------------------------------------------------------------------------------------------- */

int shape_find(const Shape *shape, const Dim *dim) {
    for (int i = 0; i < shape->n; i++)
        if (shape->dims[i] == dim) return i;
    return -1;
}

bool shape_equal(const Shape *a, const Shape *b) {
    if (a->n != b->n) return false;
    for (int i = 0; i < a->n; i++)
        if (a->dims[i] != b->dims[i]) return false;
    return true;
}

bool shape_contains(const Shape *all, const Shape *part) {
    for (int i = 0; i < part->n; i++)
        if (shape_find(all, part->dims[i]) < 0) return false;
    return true;
}

Shape shape_of(Dim *const *dims, int n) {
    Shape shape = {.n = 0};
    for (int i = 0; i < n; i++) shape_add(&shape, dims[i]);
    return shape;
}

void shape_add(Shape *shape, Dim *dim) {
    if (shape_find(shape, dim) >= 0) return;
    if (shape->n == MAX_RANK) BUG("a shape with more than %d dimensions", MAX_RANK);
    shape->dims[shape->n++] = dim;
}

Shape shape_without(const Shape *shape, const Shape *removed) {
    Shape rest = {.n = 0};
    for (int i = 0; i < shape->n; i++)
        if (shape_find(removed, shape->dims[i]) < 0) rest.dims[rest.n++] = shape->dims[i];
    return rest;
}

Shape shape_union(const Shape *a, const Shape *b) {
    Shape all = *a;
    for (int i = 0; i < b->n; i++) shape_add(&all, b->dims[i]);
    return all;
}

int64_t dim_logical(const Dim *dim) { return dim->unpadded ? dim->unpadded : dim->size; }

int64_t dim_index(const Dim *dim, int64_t place) {
    if (!dim->n_parts) return place;
    int64_t room = dim->size / dim->n_parts, part = place / room, before = 0;
    if (part >= dim->n_parts || place % room >= dim->parts[part]) return dim->unpadded;
    for (int i = 0; i < part; i++) before += dim->parts[i];
    return before + place % room;
}

int64_t shape_logical_elements(const Shape *shape) {
    int64_t n = 1;
    for (int i = 0; i < shape->n; i++) n *= dim_logical(shape->dims[i]);
    return n;
}

int64_t shape_elements(const Shape *shape) {
    int64_t n = 1;
    for (int i = 0; i < shape->n; i++) n *= shape->dims[i]->size;
    return n;
}

const char *shape_text(Arena *arena, const Shape *shape) {
    Text text = {.arena = arena};
    text_puts(&text, "[");
    for (int i = 0; i < shape->n; i++) text_printf(&text, "%s%s", i ? ", " : "", shape->dims[i]->name);
    text_puts(&text, "]");
    return text.at;
}

/* ---- types -------------------------------------------------------------------------------------------------- */

bool axis_type_equal(AxisType a, AxisType b) {
    if (a.kind != b.kind) return false;
    switch (a.kind) {
    case AXIS_REPLICATED: return true;
    case AXIS_SHARDED: return a.dim == b.dim && a.layout == b.layout && a.turn == b.turn;
    case AXIS_PARTIAL: return a.reduce == b.reduce;
    case AXIS_AT: return a.stages == b.stages;
    }
    return false;
}

const char *axis_type_text(Arena *arena, AxisType type) {
    Text text = {.arena = arena};
    switch (type.kind) {
    case AXIS_REPLICATED: text_puts(&text, "replicated"); break;
    case AXIS_SHARDED:
        text_printf(&text, "sharded(%s", type.dim ? type.dim->name : "elements");
        if (type.layout != LAYOUT_BLOCK) text_printf(&text, ", %s", layout_name[type.layout]);
        if (type.turn) text_printf(&text, ", turn %d", type.turn);
        text_puts(&text, ")");
        break;
    case AXIS_PARTIAL: text_printf(&text, "partial(%s)", reduce_name[type.reduce]); break;
    case AXIS_AT: {
        text_puts(&text, "at(");
        const char *separator = "";
        for (int i = 0; i < 64; i++) {
            if (!(type.stages >> i & 1)) continue;
            text_printf(&text, "%s%d", separator, i);
            separator = ", ";
        }
        text_puts(&text, ")");
        break;
    }
    }
    return text.at;
}

/* ---- mesh and extents ---------------------------------------------------------------------------------------- */

int64_t mesh_ranks(const Mesh *mesh) {
    int64_t n = 1;
    for (int i = 0; mesh && i < mesh->n; i++) n *= mesh->axes[i].size;
    return n;
}

int64_t mesh_coordinate(const Mesh *mesh, int64_t rank, int axis) {
    for (int i = mesh->n - 1; i > axis; i--) rank /= mesh->axes[i].size;
    return rank % mesh->axes[axis].size;
}

static bool is_leftmost_factor(const Dim *whole, const Dim *part) {
    for (; part->product && part->product->factors[0] == part; part = part->product)
        if (part->product == whole) return true;
    return false;
}

bool dim_is_cut_by(const Dim *dim, const Dim *cut) {
    return dim == cut || is_leftmost_factor(cut, dim) || is_leftmost_factor(dim, cut);
}

static bool axis_cuts(AxisType type, const Dim *dim) {
    return type.kind == AXIS_SHARDED && dim_is_cut_by(dim, type.dim);
}

int64_t local_extent(const Mesh *mesh, const AxisType *type, const Dim *dim) {
    int64_t extent = dim->size;
    for (int i = 0; mesh && i < mesh->n; i++) {
        if (!axis_cuts(type[i], dim)) continue;
        int64_t parts = mesh->axes[i].size;
        if (extent % parts) BUG("axis %s does not divide %s", mesh->axes[i].name, dim->name);
        extent /= parts;
    }
    return extent;
}

/* Axes cut in the order of the mesh, but balanced pieces are made first: then blocks of what a rank has are exchanged
 * and gathered without them. What stores a flat range in parts cuts it last. */
static int cut_place(AxisType type, const Dim *dim, int axis) {
    return dim->is_flat && axis == dim->stored_axis ? 2 : type.layout != LAYOUT_BALANCED;
}

bool cut_is_inside(AxisType inner, int inner_axis, AxisType outer, int outer_axis) {
    int a = inner.layout != LAYOUT_BALANCED, b = outer.layout != LAYOUT_BALANCED;
    return a != b ? a > b : inner_axis > outer_axis;
}

int dim_cuts(const Mesh *mesh, const AxisType *type, const Dim *dim, DimCut cuts[MAX_MESH]) {
    int n = 0;
    for (int place = 0; place < 3; place++)
        for (int a = 0; mesh && a < mesh->n; a++)
            if (axis_cuts(type[a], dim) && cut_place(type[a], dim, a) == place)
                cuts[n++] = (DimCut){a, mesh->axes[a].size, type[a].layout, type[a].turn};
    return n;
}

int64_t cuts_multiple(const DimCut *cuts, int n) {
    int64_t multiple = 1;
    for (int i = n - 1; i >= 0; i--) {
        bool halves = cuts[i].layout == LAYOUT_BALANCED && cuts[i].parts > 1 && multiple % 2;
        multiple *= cuts[i].parts * (halves ? 2 : 1);
    }
    return multiple;
}

int64_t cut_part(const Mesh *mesh, const DimCut *cut, int64_t rank) {
    return (mesh_coordinate(mesh, rank, cut->axis) - cut->turn % cut->parts + cut->parts) % cut->parts;
}

int64_t local_to_logical(const Mesh *mesh, const AxisType *type, const Dim *dim, int64_t rank, int64_t local) {
    DimCut cuts[MAX_MESH];
    int64_t extent = local_extent(mesh, type, dim);
    for (int i = dim_cuts(mesh, type, dim, cuts) - 1; i >= 0; extent *= cuts[i--].parts) {
        int64_t part = cut_part(mesh, &cuts[i], rank), half = extent / 2;
        if (cuts[i].layout != LAYOUT_BALANCED)
            local += part * extent;
        else
            local += (local < half ? part : 2 * cuts[i].parts - 2 - part) * half;
    }
    return local;
}

int64_t logical_to_local(const Mesh *mesh, const AxisType *type, const Dim *dim, int64_t rank, int64_t logical) {
    DimCut cuts[MAX_MESH];
    int64_t extent = dim->size;
    int n = dim_cuts(mesh, type, dim, cuts);
    for (int i = 0; i < n; i++) {
        int64_t part = cut_part(mesh, &cuts[i], rank), last = 2 * cuts[i].parts - 1;
        extent /= cuts[i].parts;
        int64_t unit = cuts[i].layout == LAYOUT_BALANCED ? extent / 2 : extent, block = logical / unit;
        if (block == part)
            logical -= part * unit;
        else if (unit != extent && block == last - part)
            logical -= (block - 1) * unit;
        else
            return -1;
    }
    return logical;
}

int64_t local_offset(const Mesh *mesh, const AxisType *type, const Dim *dim, int64_t rank) {
    return local_to_logical(mesh, type, dim, rank, 0);
}
