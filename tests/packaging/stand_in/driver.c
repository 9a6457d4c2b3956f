/* libcuda.so.1 without a driver. STAND_IN in the environment, such as "cuda=12080 init=803", sets its answers. */
#include <stdlib.h>
#include <string.h>

static int answer(const char *name, int otherwise)
{
    const char *all = getenv("STAND_IN"), *at = all ? strstr(all, name) : NULL;
    return at ? atoi(at + strlen(name)) : otherwise;
}

int cuInit(unsigned flags) { return answer("init=", 0); }
int cuDriverGetVersion(int *version) { *version = answer("cuda=", 13000); return 0; }
int cuDeviceGetCount(int *count) { *count = answer("count=", 1); return 0; }
int cuDeviceGetName(char *name, int length, int device) { strncpy(name, "Stand-in GPU", length); return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    int capability = answer("capability=", 90);
    *value = attribute == 75 ? capability / 10 : capability % 10;
    return 0;
}
int cuTensorMapEncodeTiled(void) { return 801; } /* onnxruntime links to it; 801: not supported */
