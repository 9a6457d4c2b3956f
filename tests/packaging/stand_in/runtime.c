/* As much of the CUDA runtime as onnxruntime needs to open a session: memory is the host's, kernels do nothing.
 * STAND_IN="malloc=2" fails every allocation, "launch=209" every kernel. The other functions answer success
 * (build.py writes them). */
#include <stdlib.h>
#include <string.h>

static int launches;

static int answer(const char *name)
{
    const char *all = getenv("STAND_IN"), *at = all ? strstr(all, name) : NULL;
    return at ? atoi(at + strlen(name)) : 0;
}

int cudaGetDeviceCount(int *count) { *count = 1; return 0; }
int cudaGetDevice(int *device) { *device = 0; return 0; }
int cudaGetDeviceProperties(char *found, int device)
{
    memset(found, 0, 512); /* the struct is larger, and begins with the name */
    strcpy(found, "Stand-in GPU");
    return 0;
}
int cudaMemGetInfo(size_t *free_bytes, size_t *total) { *free_bytes = *total = (size_t)1 << 34; return 0; }
int cudaMalloc(void **memory, size_t size)
{
    if (answer("malloc="))
        return answer("malloc=");
    *memory = aligned_alloc(256, (size + 255) / 256 * 256);
    return 0;
}
int cudaFree(void *memory) { free(memory); return 0; }
int cudaHostAlloc(void **memory, size_t size, unsigned flags) { *memory = malloc(size); return 0; }
int cudaMallocHost(void **memory, size_t size) { *memory = malloc(size); return 0; }
int cudaFreeHost(void *memory) { free(memory); return 0; }
int cudaMemcpy(void *to, const void *from, size_t size, int kind)
{
    memmove(to, from, size);
    return 0;
}
int cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, void *stream)
{
    memmove(to, from, size);
    return 0;
}
int cudaStreamCreateWithFlags(void **stream, unsigned flags) { *stream = malloc(1); return 0; }
int cudaEventCreateWithFlags(void **event, unsigned flags) { *event = malloc(1); return 0; }
const char *cudaGetErrorString(int error) { return "an error of the stand-in"; }
const char *cudaGetErrorName(int error)
{
    return error == 209 ? "cudaErrorNoKernelImageForDevice" : error == 719 ? "cudaErrorLaunchFailure" : "cudaErrorOther";
}
int cudaLaunchKernel(void)
{
    launches++;
    return 0;
}
int __cudaLaunchKernel(void)
{
    launches++;
    return 0;
}
int cudaGetLastError(void) { return launches ? answer("launch=") : 0; }
int cudaPeekAtLastError(void) { return cudaGetLastError(); }
void **__cudaRegisterFatBinary(void *code) { static void *handle; return &handle; }
