/* A graph as text; the form is described in parse.c, and print -> parse -> print is identical. Values are numbered in
 * the order in which they are printed, so that the text does not depend on node ids. */
#include "ir/op.h"

typedef struct Printer {
    const Graph *graph;
    Text *out;
    int *number; /* of each node, by id */
    int next, depth;
} Printer;

static void print_indent(Printer *p) { text_printf(p->out, "%*s", 4 * p->depth, ""); }

/* Plain words stand as they are, anything else in quotes. */
static void print_name(Text *out, const char *name) {
    bool plain = *name && !(*name >= '0' && *name <= '9') && *name != '.';
    for (const char *c = name; *c; c++)
        plain = plain && ((*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9') ||
                          *c == '_' || *c == '.' || *c == '$');
    text_printf(out, plain ? "%s" : "\"%s\"", name);
}

static void print_number(Text *out, double value) {
    char text[40];
    for (int digits = 6; digits <= 17; digits++) { /* the shortest form that reads back as the same number */
        snprintf(text, sizeof text, "%.*g", digits, value);
        double back;
        if (sscanf(text, "%lf", &back) == 1 && back == value) break;
    }
    text_puts(out, text);
}

static void print_dims(Text *out, const Shape *shape, char open, char close) {
    text_printf(out, "%c", open);
    for (int i = 0; i < shape->n; i++) {
        if (i) text_puts(out, ", ");
        print_name(out, shape->dims[i]->name);
    }
    text_printf(out, "%c", close);
}

static void print_axis_type(Text *out, AxisType type) {
    switch (type.kind) {
    case AXIS_REPLICATED: text_puts(out, "replicated"); break;
    case AXIS_SHARDED:
        text_puts(out, "sharded(");
        print_name(out, type.dim->name);
        if (type.layout != LAYOUT_BLOCK) text_printf(out, ", %s", layout_name[type.layout]);
        text_puts(out, ")");
        break;
    case AXIS_PARTIAL: text_printf(out, "partial(%s)", reduce_name[type.reduce]); break;
    case AXIS_AT: text_printf(out, "at(%llu)", (unsigned long long)type.stages); break;
    }
}

/* Axes that are not named are replicated. */
static void print_type(Printer *p, DType dtype, const Shape *shape, const AxisType *type) {
    text_puts(p->out, dtype_name[dtype]);
    print_dims(p->out, shape, '[', ']');
    const char *separator = " {";
    for (int i = 0; p->graph->mesh && i < p->graph->mesh->n; i++) {
        if (type[i].kind == AXIS_REPLICATED) continue;
        text_puts(p->out, separator);
        print_name(p->out, p->graph->mesh->axes[i].name);
        text_puts(p->out, ": ");
        print_axis_type(p->out, type[i]);
        separator = ", ";
    }
    if (separator[0] == ',') text_puts(p->out, "}");
}

static void print_header(Printer *p) {
    const Graph *graph = p->graph;
    Text *out = p->out;
    text_puts(out, "graph ");
    print_name(out, graph->name);
    text_puts(out, graph->micro ? " micro {\n" : " {\n");
    for (int i = 0; graph->mesh && i < graph->mesh->n; i++) {
        text_puts(out, i ? ", " : "    mesh ");
        print_name(out, graph->mesh->axes[i].name);
        text_printf(out, " = %lld%s", (long long)graph->mesh->axes[i].size, i + 1 == graph->mesh->n ? "\n" : "");
    }
    for (int i = 0; i < graph->dims.n; i++) {
        const Dim *dim = graph->dims.at[i];
        text_puts(out, "    dim ");
        print_name(out, dim->name);
        text_printf(out, " = %lld", (long long)dim->size);
        if (dim->like) {
            text_puts(out, " like ");
            print_name(out, dim->like->name);
        }
        if (dim->n_factors) {
            Shape factors = shape_of(dim->factors, dim->n_factors);
            text_puts(out, " factors ");
            print_dims(out, &factors, '(', ')');
        }
        if (dim->unpadded) text_printf(out, " unpadded %lld", (long long)dim->unpadded);
        text_puts(out, dim->is_batch ? " batch" : "");
        text_puts(out, dim->at_position ? " position\n" : "\n");
    }
}

static void print_tensor(Printer *p, const Tensor *tensor) {
    text_puts(p->out, "    tensor ");
    print_name(p->out, tensor->name);
    text_printf(p->out, ": %s ", tensor_class_name[tensor->class]);
    print_type(p, tensor->dtype, &tensor->shape, tensor->type);
    if (tensor->of) {
        text_puts(p->out, " of ");
        print_name(p->out, tensor->of->name);
    }
    if (tensor->group) {
        text_puts(p->out, " group ");
        print_name(p->out, tensor->group);
    }
    if (tensor->frozen) text_puts(p->out, " frozen");
    if (tensor->is_gain) text_puts(p->out, " gain");
    text_puts(p->out, "\n");
}

static void print_attr(Printer *p, const AttrInfo *info, const AttrValue *value) {
    text_printf(p->out, "%s = ", info->name);
    switch (info->kind) {
    case ATTR_NONE: break;
    case ATTR_INT: text_printf(p->out, "%lld", (long long)value->integer); break;
    case ATTR_FLOAT: print_number(p->out, value->number); break;
    case ATTR_BOOL: text_puts(p->out, value->integer ? "true" : "false"); break;
    case ATTR_NAME: value->name ? print_name(p->out, value->name) : text_puts(p->out, "none"); break;
    case ATTR_DTYPE: text_puts(p->out, dtype_name[value->integer]); break;
    case ATTR_DIM: value->dims.n ? print_name(p->out, value->dims.dims[0]->name) : text_puts(p->out, "none"); break;
    case ATTR_DIMS: print_dims(p->out, &value->dims, '[', ']'); break;
    case ATTR_LIST:
        for (int64_t i = 0; i < value->integer; i++) {
            text_puts(p->out, i ? ", " : "[");
            print_number(p->out, value->list[i]);
        }
        text_puts(p->out, "]");
        break;
    }
}

static void print_results(Printer *p, const Node *node) {
    text_puts(p->out, " : ");
    if (node->n_outs == 0) print_type(p, node->dtype, &node->shape, node->type);
    for (int i = 0; i < node->n_outs; i++) {
        if (i) text_puts(p->out, ", ");
        print_type(p, node->outs[i].dtype, &node->outs[i].shape, node->outs[i].type);
    }
    if (node->backward) text_puts(p->out, node->deferred ? " backward deferred" : " backward");
    if (node->name) {
        text_puts(p->out, " as ");
        print_name(p->out, node->name);
    }
    text_puts(p->out, "\n");
}

static int define(Printer *p, const Node *node) { return p->number[node->id] = p->next++; }

static void print_nodes(Printer *p, const Region *region);

static void print_repeat(Printer *p, const Node *node) {
    const Region *region = node->region;
    text_puts(p->out, "repeat ");
    print_name(p->out, region->dim->name);
    text_puts(p->out, region->descending ? " descending (" : " (");
    for (int i = 0; i < region->params.n; i++) {
        const Node *param = region->params.at[i];
        const char *role = i < region->n_carries                      ? "carry"
                           : i < region->n_carries + region->n_slices ? "slice"
                                                                      : "capture";
        text_puts(p->out, i ? ",\n" : "\n");
        p->depth++;
        print_indent(p);
        p->depth--;
        text_printf(p->out, "%%%d = %s %%%d : ", define(p, param), role, p->number[node->in[i]->id]);
        print_type(p, param->dtype, &param->shape, param->type);
        if (param->name) {
            text_puts(p->out, " as ");
            print_name(p->out, param->name);
        }
    }
    text_puts(p->out, ") {\n");
    p->depth++;
    print_nodes(p, region);
    for (int i = 0; i < region->results.n; i++) {
        print_indent(p);
        text_printf(p->out, "%s %%%d\n", i < region->n_carries ? "next" : "stack",
                    p->number[region->results.at[i]->id]);
    }
    p->depth--;
    print_indent(p);
    text_puts(p->out, "}");
}

static void print_node(Printer *p, const Node *node) {
    const OpInfo *info = op_info(node);
    print_indent(p);
    text_printf(p->out, "%%%d = ", define(p, node));
    if (node->op == OP_INPUT) {
        text_puts(p->out, "input ");
        print_name(p->out, node->tensor->name);
    } else if (node->op == OP_REPEAT) {
        print_repeat(p, node);
    } else {
        text_printf(p->out, "%s(", info->name);
        for (int i = 0; i < node->n_in; i++) text_printf(p->out, "%s%%%d", i ? ", " : "", p->number[node->in[i]->id]);
        for (int i = 0; i < op_n_attrs(info); i++) {
            if (i || node->n_in) text_puts(p->out, ", ");
            print_attr(p, &info->attrs[i], &node->attrs[i]);
        }
        text_puts(p->out, ")");
    }
    print_results(p, node);
}

static void print_nodes(Printer *p, const Region *region) {
    for (int i = 0; i < region->nodes.n; i++)
        if (region->nodes.at[i]->op != OP_PARAM) print_node(p, region->nodes.at[i]);
}

void graph_print(const Graph *graph, Text *out) {
    Printer p = {.graph = graph, .out = out, .number = NEW_N(graph->arena, int, graph->n_nodes), .depth = 1};
    for (int i = 0; i < graph->n_nodes; i++) p.number[i] = -1; /* a use before its definition shows as %-1 */
    print_header(&p);
    for (int i = 0; i < graph->tensors.n; i++) print_tensor(&p, graph->tensors.at[i]);
    print_nodes(&p, &graph->top);
    for (int i = 0; i < graph->outputs.n; i++) {
        const Output *output = &graph->outputs.at[i];
        text_puts(out, "    output ");
        print_name(out, output->tensor->name);
        text_printf(out, output->accumulate ? " += %%%d\n" : " = %%%d\n", p.number[output->value->id]);
    }
    text_puts(out, "}\n");
}
