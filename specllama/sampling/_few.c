/* What few.py makes of one row of logits, without a dozen passes of NumPy over a cold row.

   Both functions answer None where they do not know (another kind of array, too many equal logits,
   NaN or infinity); few.py then works it out, and says what is wrong with the row. */

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <math.h>
#include <stdbool.h>
#include <string.h>

/* The layout of rows.py: columns of BLOCK values, so that their maxima are whole vectors. */
#define BLOCK 64
#define FEW 128      /* distribution.FEW */
#define LEAST 1e-290 /* distribution.LEAST */
#define MOST 512     /* candidates: top-k, and what shares their columns' edge */

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3") /* Python's own flags are -O2 as a rule, where loops stay scalar */
#endif

typedef struct {
    float value;
    Py_ssize_t id;
} Token;

typedef struct {
    Py_buffer view;
    const float *values;
    Py_ssize_t length;
    Py_ssize_t columns;
    float *maxima; /* [columns], those of the columns */
} Row;

/* The maxima of `columns` columns; true if a value is NaN. */
static bool find_maxima(const float *values, Py_ssize_t columns, float *restrict maxima)
{
    int odd = 0;
    for (Py_ssize_t j = 0; j < columns; j++)
        maxima[j] = values[j];
    for (int i = 0; i < BLOCK; i++) {
        const float *line = values + i * columns;
        int found = 0;
        for (Py_ssize_t j = 0; j < columns; j++) {
            maxima[j] = line[j] > maxima[j] ? line[j] : maxima[j];
            found |= line[j] != line[j];
        }
        odd |= found;
    }
    return odd;
}

static void close_row(Row *row)
{
    PyMem_Free(row->maxima);
    PyBuffer_Release(&row->view);
}

/* Whether a buffer holds float32 of this machine; ctypes says "<f" or ">f" for it. */
static bool is_float32(const char *format)
{
    return format && strcmp(format + (format[0] == (PY_LITTLE_ENDIAN ? '<' : '>')), "f") == 0;
}

/* Whether it is a row of float32 that can be worked on; `close_row` belongs to it then. */
static bool open_row(Row *row, PyObject *array)
{
    if (PyObject_GetBuffer(array, &row->view, PyBUF_ND | PyBUF_FORMAT) < 0) {
        PyErr_Clear(); /* there are gaps between its values */
        return false;
    }
    row->values = row->view.buf;
    row->length = row->view.len / (Py_ssize_t)sizeof(float);
    row->columns = row->length / BLOCK;
    row->maxima = NULL;
    if (is_float32(row->view.format) && row->columns > 0)
        row->maxima = PyMem_Malloc((size_t)row->columns * sizeof(float));
    if (row->maxima) {
        bool odd = find_maxima(row->values, row->columns, row->maxima);
        for (Py_ssize_t i = row->columns * BLOCK; i < row->length; i++)
            odd |= row->values[i] != row->values[i];
        if (!odd)
            return true;
    }
    close_row(row);
    return false;
}

/* The `count`-th largest maximum: as many values of the row are no less. */
static float edge_of(const Row *row, int count)
{
    float largest[FEW];
    int n = 0;
    for (Py_ssize_t j = 0; j < row->columns; j++) {
        float value = row->maxima[j];
        if (n == count && value <= largest[n - 1])
            continue;
        int place = n < count ? n++ : n - 1;
        for (; place > 0 && largest[place - 1] < value; place--)
            largest[place] = largest[place - 1];
        largest[place] = value;
    }
    return largest[n - 1];
}

/* Put one more among tokens that are falling; of equal ones the lowest id comes first. */
static void insert(Token *tokens, int n, Token token)
{
    for (; n > 0; n--) {
        const Token *before = &tokens[n - 1];
        if (before->value > token.value || (before->value == token.value && before->id < token.id))
            break;
        tokens[n] = *before;
    }
    tokens[n] = token;
}

/* The same for every `step`-th logit of a stretch that is no less than `edge`.

   Returns how many tokens there are then, more than MOST if they do not fit. */
static int insert_from(const Row *row, Py_ssize_t id, Py_ssize_t end, Py_ssize_t step, float edge,
                       Token *tokens, int n)
{
    for (; id < end && n <= MOST; id += step) {
        if (row->values[id] < edge)
            continue;
        if (n < MOST)
            insert(tokens, n, (Token){row->values[id], id});
        n++;
    }
    return n;
}

/* All tokens with logits from `edge` on, falling; how many, more than MOST if they do not fit. */
static int find_tokens(const Row *row, float edge, Token *tokens)
{
    Py_ssize_t cells = row->columns * BLOCK;
    int n = 0;
    for (Py_ssize_t j = 0; j < row->columns; j++)
        if (row->maxima[j] >= edge)
            n = insert_from(row, j, cells, row->columns, edge, tokens, n);
    return insert_from(row, cells, row->length, 1, edge, tokens, n);
}

/* How many of `n` falling tokens min-p and top-p leave. */
static int count_kept(const Token *tokens, int n, double top_p, float log_min_p)
{
    double top = tokens[0].value;
    float least = tokens[0].value + log_min_p;
    int likely = 1, reached = 0;
    while (likely < n && tokens[likely].value >= least)
        likely++;
    if (top_p >= 1.0 || likely == 1)
        return likely;
    double weights[FEW], mass = 0.0, sum = 0.0;
    for (int i = 0; i < n; i++) {
        weights[i] = exp(tokens[i].value - top);
        mass += weights[i];
    }
    mass *= top_p;
    while (reached < n) {
        sum += weights[reached++];
        if (sum >= mass)
            break;
    }
    return reached < likely ? reached : likely;
}

static void by_id(Token *tokens, int n)
{
    for (int i = 1; i < n; i++) {
        Token token = tokens[i];
        int place = i;
        for (; place > 0 && tokens[place - 1].id > token.id; place--)
            tokens[place] = tokens[place - 1];
        tokens[place] = token;
    }
}

/* The ids of `n` rising tokens and their probabilities, both lists. */
static PyObject *told(const Token *tokens, int n, double top, double temperature)
{
    double weights[FEW], total = 0.0;
    int kept = 0, next = 0;
    for (int i = 0; i < n; i++) {
        weights[i] = exp((tokens[i].value - top) / temperature);
        total += weights[i];
    }
    for (int i = 0; i < n; i++) {
        weights[i] /= total;
        kept += weights[i] >= LEAST;
    }
    PyObject *ids = PyList_New(kept), *probs = PyList_New(kept);
    for (int i = 0; ids && probs && i < n; i++) {
        if (weights[i] < LEAST)
            continue;
        PyObject *id = PyLong_FromSsize_t(tokens[i].id), *prob = PyFloat_FromDouble(weights[i]);
        if (!id || !prob) {
            Py_XDECREF(id);
            Py_XDECREF(prob);
            break;
        }
        PyList_SetItem(ids, next, id);
        PyList_SetItem(probs, next++, prob);
    }
    PyObject *pair = next == kept && kept > 0 ? PyTuple_Pack(2, ids, probs) : NULL;
    Py_XDECREF(ids);
    Py_XDECREF(probs);
    return pair;
}

/* law(row, top_k, top_p, log_min_p, temperature) */
static PyObject *law(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *array;
    int top_k;
    float log_min_p;
    double top_p, temperature;
    if (!PyArg_ParseTuple(args, "Oidfd", &array, &top_k, &top_p, &log_min_p, &temperature))
        return NULL;
    Row row;
    if (!open_row(&row, array))
        Py_RETURN_NONE;
    Token tokens[MOST];
    int n = 0;
    if (0 < top_k && top_k <= FEW && top_k <= row.columns)
        n = find_tokens(&row, edge_of(&row, top_k), tokens);
    close_row(&row);
    if (n < 1 || n > MOST || !isfinite(tokens[0].value))
        Py_RETURN_NONE;
    float top = tokens[0].value;
    n = count_kept(tokens, n < top_k ? n : top_k, top_p, log_min_p);
    by_id(tokens, n);
    return told(tokens, n, top, temperature);
}

/* best(row) */
static PyObject *best(PyObject *Py_UNUSED(module), PyObject *array)
{
    Row row;
    if (!open_row(&row, array))
        Py_RETURN_NONE;
    Token token = {row.maxima[0], 0};
    for (Py_ssize_t j = 1; j < row.columns; j++)
        token.value = row.maxima[j] > token.value ? row.maxima[j] : token.value;
    for (Py_ssize_t i = row.columns * BLOCK; i < row.length; i++)
        token.value = row.values[i] > token.value ? row.values[i] : token.value;
    while (row.values[token.id] < token.value)
        token.id++;
    double mass = 0.0;
    for (Py_ssize_t j = 0; j < row.columns; j++)
        mass += expf(row.maxima[j] - token.value);
    for (Py_ssize_t i = row.columns * BLOCK; i < row.length; i++)
        mass += expf(row.values[i] - token.value);
    close_row(&row);
    if (!isfinite(token.value))
        Py_RETURN_NONE;
    return Py_BuildValue("nd", token.id, mass > 1.0 ? 1.0 / mass : 1.0);
}

static PyMethodDef functions[] = {
    {"law", law, METH_VARARGS, NULL},
    {"best", best, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "specllama.sampling._few", NULL, 0, functions, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__few(void)
{
    return PyModuleDef_Init(&definition);
}
