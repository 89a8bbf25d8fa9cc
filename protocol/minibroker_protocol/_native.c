/* Runs of records of any layout: `native_run` of records/native.py. Nothing is refused here: a run ends before the first record
   that does not add up, or that is unusual, and the walk in Python goes on with it. */
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

typedef const uint8_t *Bytes;

/* More headers are left to the walk in Python, which gives the event loop its turn among them. */
enum { INT32_BYTES = 5, INT64_BYTES = 10, MOST_HEADERS = 16 };

/* Reads a zig-zag varint of at most `most` bytes that ends before `end`. Returns where it ends, NULL if it does not. */
static Bytes number(Bytes p, Bytes end, int most, int64_t *value)
{
    uint64_t n = 0;
    for (int i = 0; i < most && p < end; i++) {
        uint8_t byte = *p++;
        n |= (uint64_t)(byte & 0x7F) << (7 * i);
        if (byte < 0x80) {
            if (most == INT32_BYTES)
                n &= 0xFFFFFFFF;
            *value = (int64_t)(n >> 1) ^ -(int64_t)(n & 1);
            return p;
        }
    }
    return NULL;
}

/* Reads a length and skips so many bytes, none for a negative length. Returns NULL if they do not end by `end`. */
static Bytes field(Bytes p, Bytes end, int64_t *length)
{
    p = number(p, end, INT32_BYTES, length);
    if (p == NULL || *length > end - p)
        return NULL;
    return *length > 0 ? p + *length : p;
}

/* Returns the end of the record at `p` if it adds up and its offset delta is `index`, else NULL. */
static Bytes record(Bytes p, Bytes end, Py_ssize_t index, int64_t *delta, int64_t *key)
{
    int64_t n, value, headers;
    Bytes stop = field(p, end, &n);
    if (stop == NULL || n < 1)
        return NULL;
    p = stop - n + 1; /* after the attributes, which are unused */
    if ((p = number(p, stop, INT64_BYTES, delta)) == NULL || (p = number(p, stop, INT32_BYTES, &n)) == NULL || n != index)
        return NULL;
    if ((p = field(p, stop, key)) == NULL || (p = field(p, stop, &value)) == NULL)
        return NULL;
    if ((p = number(p, stop, INT32_BYTES, &headers)) == NULL || headers < 0 || headers > MOST_HEADERS)
        return NULL;
    for (; headers > 0; headers--)
        if ((p = field(p, stop, &n)) == NULL || n < 0 || (p = field(p, stop, &value)) == NULL)
            return NULL;
    return p == stop ? stop : NULL;
}

static PyObject *run(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer data;
    Py_ssize_t at, index, limit, records = 0, size = 0;
    long long low, high;
    int alike, null_keys = 0;
    int64_t best = 0;
    if (!PyArg_ParseTuple(args, "y*nnnLLp", &data, &at, &index, &limit, &low, &high, &alike))
        return NULL;
    if (at >= 0 && at <= data.len && index >= 0 && limit >= 0) {
        Bytes start = (Bytes)data.buf + at, end = (Bytes)data.buf + data.len, p = start;
        for (; records < limit - index; records++) {
            int64_t delta, key;
            Bytes next = record(p, end, index + records, &delta, &key);
            if (next == NULL || delta < low || delta > high || (alike && records > 0 && (key < 0) != null_keys))
                break;
            if (records == 0)
                null_keys = key < 0;
            if (records == 0 || delta > best)
                best = delta;
            p = next;
        }
        size = p - start;
    }
    PyBuffer_Release(&data);
    return Py_BuildValue("nnLO", records, size, (long long)best, null_keys ? Py_True : Py_False);
}

static PyMethodDef methods[] = {{"run", run, METH_VARARGS, NULL}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_native", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&module);
}
