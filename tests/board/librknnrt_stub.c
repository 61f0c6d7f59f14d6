/* A stand-in for librknnrt.so that lets the real rknn-toolkit-lite2 wheel run where there is no NPU.
 *
 * It computes nothing: each context is a connection to the server of tests/board/npu.py (a Unix socket, whose path is
 * in STUB_SOCKET), which gets the .rknn file's bytes once, then each run's inputs, and answers with the outputs. The
 * declarations are those of the structures that the wheel passes, as its ctypes classes describe them.
 *
 * What goes wrong on purpose is said by the environment; a call is named without `rknn_`, "query.5" is one command:
 *   STUB_FAULT    <call>=<code>[,...]: the call returns the code and does nothing
 *   STUB_CRASH    <call>: the process is ended by SIGSEGV in it
 *   STUB_DELAY    <call>=<seconds>: the call takes so much longer
 *   STUB_OUTPUT   nan | inf | short: what is wrong with the first output
 *   STUB_SAY      what a call that fails, crashes or is slow prints before, on stderr
 *   STUB_MUTTER   as STUB_SAY, on the C library's buffered stdout
 *   STUB_SKIP     calls of that name that go well first, in each process
 *   STUB_LEDGER, STUB_TIMES   a file in which firings are counted over processes, and how many there are at most
 *   STUB_API, STUB_DRIVER     the version strings
 *   STUB_FLIP     a bit of the outputs is wrong, from the run of that number on (from 1), in each process
 *   STUB_CALLS    a file that gets the name of each call
 */
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { MAX_DIMS = 16, MAX_NAME = 256, MAX_TENSORS = 16 };
enum { OK = 0, FAIL = -1, DEVICE_UNAVAILABLE = -3, PARAM_INVALID = -5, CTX_INVALID = -7, INPUT_INVALID = -8, OUTPUT_INVALID = -9 };
enum { QUERY_COUNTS = 0, QUERY_INPUT = 1, QUERY_OUTPUT = 2, QUERY_VERSIONS = 5 };

struct input { uint32_t index; void *data; uint32_t bytes; uint8_t as_is; int32_t type; int32_t layout; };
struct output { uint8_t as_float; uint8_t is_given; uint32_t index; void *data; uint32_t bytes; };
struct attributes {
    uint32_t index, rank, dims[MAX_DIMS];
    char name[MAX_NAME];
    uint32_t elements, bytes;
    int32_t layout, type, quantised;
    int8_t fraction;
    uint32_t zero_point;
    float scale;
    uint32_t width_stride, bytes_with_stride;
    uint8_t as_is;
    uint32_t height_stride;
};
struct versions { char api[256], driver[256]; };

/* What the server says of a tensor. */
struct tensor { char name[MAX_NAME]; int32_t type; uint32_t rank, dims[MAX_DIMS]; };

struct context {
    int socket;
    uint32_t inputs, outputs;
    struct tensor tensors[2 * MAX_TENSORS];
    void *data[MAX_TENSORS];
    uint32_t bytes[MAX_TENSORS];
};

/* What `strings librknnrt.so` shows of the real one: doctor reads it. */
__attribute__((used)) static const char banner[] = "librknnrt version: 2.3.2 (stub@2025-04-09T09:09:27)";

static int runs;

static int transfer(int socket, void *data, size_t bytes, int sending) {
    for (char *at = data; bytes;) {
        ssize_t done = sending ? send(socket, at, bytes, MSG_NOSIGNAL) : recv(socket, at, bytes, 0);
        if (done <= 0) return 0;
        at += done;
        bytes -= (size_t)done;
    }
    return 1;
}

static int put(int socket, const void *data, size_t bytes) { return transfer(socket, (void *)data, bytes, 1); }
static int get(int socket, void *data, size_t bytes) { return transfer(socket, data, bytes, 0); }

/* The text after "<call>=" in the list of that environment variable, or NULL; without "=" the name alone counts. */
static const char *find(const char *variable, const char *call) {
    const char *at = getenv(variable);
    size_t length = strlen(call);
    for (; at && *at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (!strncmp(at, call, length) && (at[length] == '=' || at[length] == ',' || !at[length]))
            return at + length + (at[length] == '=');
    return NULL;
}

static int has_turn(const char *call) {
    static struct { char name[32]; int count; } seen[32];
    const char *skip = getenv("STUB_SKIP"), *ledger = getenv("STUB_LEDGER"), *times = getenv("STUB_TIMES");
    int slot = 0;
    while (slot < 31 && seen[slot].name[0] && strcmp(seen[slot].name, call)) slot++;
    snprintf(seen[slot].name, sizeof seen[slot].name, "%s", call);
    if (skip && seen[slot].count++ < atoi(skip)) return 0;
    if (!ledger || !times) return 1;
    int file = open(ledger, O_WRONLY | O_CREAT | O_APPEND, 0600);
    int due = file >= 0 && lseek(file, 0, SEEK_END) < atoi(times) && write(file, ".", 1) == 1;
    if (file >= 0) close(file);
    return due;
}

static void speak(void) {
    const char *say = getenv("STUB_SAY"), *mutter = getenv("STUB_MUTTER");
    if (say) dprintf(2, "%s\n", say);
    if (mutter) printf("%s\n", mutter);
}

/* The code that the call must return at once, or 0. */
static int strike(const char *call) {
    const char *calls = getenv("STUB_CALLS"), *fault = find("STUB_FAULT", call), *delay = find("STUB_DELAY", call);
    if (calls) {
        int file = open(calls, O_WRONLY | O_CREAT | O_APPEND, 0600);
        if (file >= 0) {
            dprintf(file, "%s\n", call);
            close(file);
        }
    }
    int crash = find("STUB_CRASH", call) != NULL;
    if ((!fault && !delay && !crash) || !has_turn(call)) return OK;
    speak();
    if (delay) {
        double seconds = atof(delay);
        struct timespec rest = {(time_t)seconds, (long)(fmod(seconds, 1) * 1e9)};
        nanosleep(&rest, NULL);
    }
    if (crash) raise(SIGSEGV);
    return fault ? atoi(fault) : OK;
}

static int dial(void) {
    const char *path = getenv("STUB_SOCKET");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int made = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (made < 0 || !path) return -1;
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    if (connect(made, (struct sockaddr *)&address, sizeof address)) {
        close(made);
        return -1;
    }
    return made;
}

static uint32_t elements(const struct tensor *tensor) {
    uint32_t product = 1;
    for (uint32_t axis = 0; axis < tensor->rank; axis++) product *= tensor->dims[axis];
    return product;
}

static void drop(struct context *context) {
    for (int index = 0; index < MAX_TENSORS; index++) free(context->data[index]);
    if (context->socket >= 0) close(context->socket);
    free(context);
}

int rknn_init(uint64_t *handle, void *model, uint32_t bytes, uint32_t flags, void *more) {
    (void)flags, (void)more;
    int code = strike("init");
    if (code) return code;
    struct context *context = calloc(1, sizeof *context);
    if (!context) return FAIL;
    context->socket = dial();
    if (context->socket < 0) {
        dprintf(2, "E RKNN: failed to open rknpu module, need to insmod rknpu driver!\n");
        drop(context);
        return DEVICE_UNAVAILABLE;
    }
    int32_t answer = FAIL;
    if (!put(context->socket, &bytes, sizeof bytes) || !put(context->socket, model, bytes) ||
        !get(context->socket, &answer, sizeof answer))
        answer = FAIL;
    if (answer == OK) {
        uint32_t counts[2] = {0, 0};
        if (!get(context->socket, counts, sizeof counts) || counts[0] > MAX_TENSORS || counts[1] > MAX_TENSORS ||
            !get(context->socket, context->tensors, (counts[0] + counts[1]) * sizeof *context->tensors))
            answer = FAIL;
        context->inputs = counts[0];
        context->outputs = counts[1];
    }
    if (answer != OK) {
        dprintf(2, "E RKNN: the model is invalid\n");
        drop(context);
        return answer;
    }
    *handle = (uint64_t)(uintptr_t)context;
    return OK;
}

int rknn_destroy(uint64_t handle) {
    int code = strike("destroy");
    if (code) return code;
    if (!handle) return CTX_INVALID;
    drop((struct context *)(uintptr_t)handle);
    return OK;
}

int rknn_query(uint64_t handle, int command, void *answer, uint32_t bytes) {
    struct context *context = (struct context *)(uintptr_t)handle;
    char call[16];
    snprintf(call, sizeof call, "query.%d", command);
    int code = strike(call);
    if (code) return code;
    if (command == QUERY_VERSIONS) {
        struct versions *versions = answer;
        const char *api = getenv("STUB_API"), *driver = getenv("STUB_DRIVER");
        snprintf(versions->api, sizeof versions->api, "%s", api ? api : "2.3.2 (stub@2025-04-09T09:09:27)");
        snprintf(versions->driver, sizeof versions->driver, "%s", driver ? driver : "0.9.8");
        return OK;
    }
    if (!context) return CTX_INVALID;
    if (command == QUERY_COUNTS) {
        memcpy(answer, &context->inputs, 2 * sizeof(uint32_t));
        return OK;
    }
    if (command != QUERY_INPUT && command != QUERY_OUTPUT) return PARAM_INVALID;
    struct attributes *attributes = answer;
    uint32_t index = attributes->index, count = command == QUERY_INPUT ? context->inputs : context->outputs;
    if (index >= count) return PARAM_INVALID;
    const struct tensor *tensor = context->tensors + index + (command == QUERY_OUTPUT ? context->inputs : 0);
    memset(answer, 0, bytes < sizeof *attributes ? bytes : sizeof *attributes);
    attributes->index = index;
    attributes->rank = tensor->rank;
    memcpy(attributes->dims, tensor->dims, sizeof tensor->dims);
    memcpy(attributes->name, tensor->name, MAX_NAME);
    attributes->elements = elements(tensor);
    attributes->bytes = 2 * attributes->elements;
    attributes->layout = 3; /* undefined, as for all tensors that are no pictures */
    attributes->type = tensor->type;
    attributes->scale = 1;
    return OK;
}

int rknn_set_core_mask(uint64_t handle, int mask) {
    (void)handle, (void)mask;
    return strike("set_core_mask");
}

int rknn_set_input_shapes(uint64_t handle, uint32_t count, void *shapes) {
    (void)handle, (void)count, (void)shapes;
    return strike("set_input_shapes");
}

int rknn_inputs_set(uint64_t handle, uint32_t count, struct input *inputs) {
    struct context *context = (struct context *)(uintptr_t)handle;
    int code = strike("inputs_set");
    if (code) return code;
    if (!context) return CTX_INVALID;
    if (count != context->inputs) return INPUT_INVALID;
    for (uint32_t number = 0; number < count; number++) {
        if (inputs[number].index >= count) return INPUT_INVALID;
        int32_t head[3] = {(int32_t)inputs[number].index, inputs[number].type, (int32_t)inputs[number].bytes};
        if (!put(context->socket, head, sizeof head) || !put(context->socket, inputs[number].data, inputs[number].bytes))
            return FAIL;
    }
    return OK;
}

int rknn_run(uint64_t handle, void *more) {
    (void)more;
    struct context *context = (struct context *)(uintptr_t)handle;
    int code = strike("run");
    if (code) return code;
    if (!context) return CTX_INVALID;
    runs++;
    int32_t head[3] = {-1, 0, 0}, answer = FAIL;
    if (!put(context->socket, head, sizeof head) || !get(context->socket, &answer, sizeof answer) || answer != OK)
        return answer;
    for (uint32_t index = 0; index < context->outputs; index++) {
        uint32_t bytes = 4 * elements(context->tensors + context->inputs + index);
        void *data = realloc(context->data[index], bytes);
        if (!data) return FAIL;
        context->data[index] = data;
        context->bytes[index] = bytes;
        if (!get(context->socket, data, bytes)) return FAIL;
        const char *flip = getenv("STUB_FLIP");
        if (flip && runs >= atoi(flip)) *(uint32_t *)data ^= 1u << 13;
    }
    return OK;
}

int rknn_outputs_get(uint64_t handle, uint32_t count, struct output *outputs, void *more) {
    (void)more;
    struct context *context = (struct context *)(uintptr_t)handle;
    const char *wrong = getenv("STUB_OUTPUT");
    int code = strike("outputs_get");
    if (code) return code;
    if (!context) return CTX_INVALID;
    if (count > context->outputs) return OUTPUT_INVALID;
    for (uint32_t number = 0; number < count; number++) {
        struct output *output = outputs + number;
        uint32_t index = output->is_given ? output->index : number;
        uint32_t bytes = 4 * elements(context->tensors + context->inputs + index);
        if (output->is_given && output->data && output->bytes < bytes) return OUTPUT_INVALID;
        if (!output->is_given) output->data = malloc(bytes);
        output->index = index;
        output->bytes = bytes;
        if (context->data[index]) memcpy(output->data, context->data[index], bytes);
        else memset(output->data, 0, bytes);
    }
    if (wrong && count && has_turn("output")) {
        speak();
        if (!strcmp(wrong, "nan")) *(float *)outputs[0].data = NAN;
        if (!strcmp(wrong, "inf")) *(float *)outputs[0].data = -INFINITY;
        if (!strcmp(wrong, "short")) outputs[0].bytes /= 2;
    }
    return OK;
}

int rknn_outputs_release(uint64_t handle, uint32_t count, struct output *outputs) {
    (void)handle;
    int code = strike("outputs_release");
    if (code) return code;
    for (uint32_t number = 0; number < count; number++)
        if (!outputs[number].is_given) {
            free(outputs[number].data);
            outputs[number].data = NULL;
        }
    return OK;
}
