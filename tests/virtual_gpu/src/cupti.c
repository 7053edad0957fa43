/* libcupti.so.N: NVIDIA's own crashes on a driver that is not theirs. This one refuses, as CUPTI does in many containers, and
 * torch.profiler goes on without the GPU's activities.
 */
#include "state.h"

#define INSUFFICIENT_PRIVILEGES 35

VG_EXPORT int cuptiGetVersion(unsigned *version)
{
    *version = 24;
    return 0;
}

VG_EXPORT int cuptiGetResultString(int result, const char **text)
{
    *text = result ? "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES" : "CUPTI_SUCCESS";
    return 0;
}

#define REFUSED(function)                                                                                                  \
    VG_EXPORT int function(void)                                                                                           \
    {                                                                                                                      \
        FAULTS(function);                                                                                                  \
        return INSUFFICIENT_PRIVILEGES;                                                                                    \
    }
REFUSED(cuptiSubscribe) REFUSED(cuptiUnsubscribe) REFUSED(cuptiFinalize) REFUSED(cuptiEnableCallback)
REFUSED(cuptiEnableDomain) REFUSED(cuptiActivityEnable) REFUSED(cuptiActivityDisable) REFUSED(cuptiActivityFlushAll)
REFUSED(cuptiActivityRegisterCallbacks) REFUSED(cuptiActivityRegisterTimestampCallback)
REFUSED(cuptiActivitySetAttribute) REFUSED(cuptiActivityGetAttribute) REFUSED(cuptiActivityGetNextRecord)
REFUSED(cuptiActivityGetNumDroppedRecords) REFUSED(cuptiActivityPushExternalCorrelationId)
REFUSED(cuptiActivityPopExternalCorrelationId) REFUSED(cuptiActivityEnableCudaEventDeviceTimestamps)
REFUSED(cuptiActivityEnableDriverApi) REFUSED(cuptiActivityEnableRuntimeApi) REFUSED(cuptiGetCallbackName)
REFUSED(cuptiActivityConfigureUnifiedMemoryCounter) REFUSED(cuptiGetDeviceId) REFUSED(cuptiGetTimestamp)
REFUSED(cuptiGetStreamIdEx) REFUSED(cuptiDeviceGetNumMetrics) REFUSED(cuptiDeviceGetChipName)
