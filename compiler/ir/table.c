/* The operator table, made from ops.def: each line's entry is defined in ir/ops/<family>.c. */
#include "ir/op.h"

const OpInfo *const op_table[OP_COUNT] = {
#define OP(name, NAME) [OP_##NAME] = &op_info_##name,
#include "ir/ops.def"
#undef OP
};

int op_n_attrs(const OpInfo *info) {
    int n = 0;
    while (n < (int)(sizeof info->attrs / sizeof info->attrs[0]) && info->attrs[n].kind != ATTR_NONE) n++;
    return n;
}

int op_attr_index(const OpInfo *info, const char *name) {
    int n = op_n_attrs(info);
    for (int i = 0; i < n; i++)
        if (strcmp(info->attrs[i].name, name) == 0) return i;
    BUG("operator %s has no attribute %s", info->name, name);
}

const AttrValue *node_attr(const Node *node, const char *name) {
    return &node->attrs[op_attr_index(op_info(node), name)];
}

/* ops.def is sorted, so the table is. */
Op op_find(const char *name) {
    int lo = 0, hi = OP_COUNT - 1;
    while (lo <= hi) {
        int middle = (lo + hi) / 2;
        int order = strcmp(name, op_table[middle]->name);
        if (order == 0) return (Op)middle;
        if (order < 0)
            hi = middle - 1;
        else
            lo = middle + 1;
    }
    return OP_COUNT;
}
