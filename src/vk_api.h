/* Vulkan's functions, found at run time. Everything of Vulkan is left out under NOVA_NO_VULKAN. */
#ifndef NOVA_VK_API_H
#define NOVA_VK_API_H

#include "platform.h"

#ifndef NOVA_NO_VULKAN

#if defined(__has_include)
#if !__has_include(<vulkan/vulkan_core.h>)
#error "nova.c needs the headers of the Vulkan SDK (Debian: libvulkan-dev), or -DNOVA_NO_VULKAN to be without GPUs"
#endif
#endif
#ifndef VK_NO_PROTOTYPES
#define VK_NO_PROTOTYPES
#endif
#include <vulkan/vulkan_core.h>

/* ---- What headers older than 1.3.255 lack ---- */

#ifndef VK_KHR_cooperative_matrix
#define VK_KHR_cooperative_matrix 1
#define VK_KHR_COOPERATIVE_MATRIX_EXTENSION_NAME "VK_KHR_cooperative_matrix"
#define VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR ((VkStructureType)1000506000)
#define VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_PROPERTIES_KHR               ((VkStructureType)1000506001)
typedef enum VkComponentTypeKHR {
    VK_COMPONENT_TYPE_FLOAT16_KHR = 0, VK_COMPONENT_TYPE_FLOAT32_KHR = 1, VK_COMPONENT_TYPE_FLOAT64_KHR = 2,
    VK_COMPONENT_TYPE_SINT8_KHR = 3, VK_COMPONENT_TYPE_SINT16_KHR = 4, VK_COMPONENT_TYPE_SINT32_KHR = 5,
    VK_COMPONENT_TYPE_SINT64_KHR = 6, VK_COMPONENT_TYPE_UINT8_KHR = 7, VK_COMPONENT_TYPE_UINT16_KHR = 8,
    VK_COMPONENT_TYPE_UINT32_KHR = 9, VK_COMPONENT_TYPE_UINT64_KHR = 10, VK_COMPONENT_TYPE_MAX_ENUM_KHR = 0x7fffffff
} VkComponentTypeKHR;
typedef enum VkScopeKHR {
    VK_SCOPE_DEVICE_KHR = 1, VK_SCOPE_WORKGROUP_KHR = 2, VK_SCOPE_SUBGROUP_KHR = 3, VK_SCOPE_MAX_ENUM_KHR = 0x7fffffff
} VkScopeKHR;
typedef struct VkCooperativeMatrixPropertiesKHR {
    VkStructureType    sType;
    void              *pNext;
    uint32_t           MSize, NSize, KSize;
    VkComponentTypeKHR AType, BType, CType, ResultType;
    VkBool32           saturatingAccumulation;
    VkScopeKHR         scope;
} VkCooperativeMatrixPropertiesKHR;
typedef struct VkPhysicalDeviceCooperativeMatrixFeaturesKHR {
    VkStructureType sType;
    void           *pNext;
    VkBool32        cooperativeMatrix, cooperativeMatrixRobustBufferAccess;
} VkPhysicalDeviceCooperativeMatrixFeaturesKHR;
typedef VkResult (VKAPI_PTR *PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR)(VkPhysicalDevice, uint32_t *,
                                                                                     VkCooperativeMatrixPropertiesKHR *);
#endif

/* ---- The functions ---- */

#define VK_GLOBAL_FUNCTIONS(X) X(EnumerateInstanceVersion) X(EnumerateInstanceExtensionProperties) X(CreateInstance)

#define VK_INSTANCE_FUNCTIONS(X)                                                                            \
    X(DestroyInstance) X(EnumeratePhysicalDevices) X(GetPhysicalDeviceProperties)                           \
    X(GetPhysicalDeviceQueueFamilyProperties) X(EnumerateDeviceExtensionProperties) X(CreateDevice)         \
    X(GetDeviceProcAddr)
/* Core in 1.1; missing in an instance of 1.0, which is then not used. */
#define VK_INSTANCE_FUNCTIONS_1_1(X) \
    X(GetPhysicalDeviceProperties2) X(GetPhysicalDeviceFeatures2) X(GetPhysicalDeviceMemoryProperties2)
#define VK_INSTANCE_FUNCTIONS_OPTIONAL(X) X(GetPhysicalDeviceCooperativeMatrixPropertiesKHR)

#define VK_DEVICE_FUNCTIONS(X) \
    X(DestroyDevice) X(GetDeviceQueue) X(DeviceWaitIdle) X(AllocateMemory) X(FreeMemory) X(MapMemory) \
    X(CreateBuffer) X(DestroyBuffer) X(GetBufferMemoryRequirements) X(BindBufferMemory) \
    X(CreateShaderModule) X(DestroyShaderModule) X(CreatePipelineCache) X(DestroyPipelineCache) \
    X(GetPipelineCacheData) X(CreateComputePipelines) X(DestroyPipeline) X(CreatePipelineLayout) \
    X(DestroyPipelineLayout) X(CreateDescriptorSetLayout) X(DestroyDescriptorSetLayout) \
    X(CreateDescriptorPool) X(DestroyDescriptorPool) X(AllocateDescriptorSets) X(UpdateDescriptorSets) \
    X(CreateCommandPool) X(DestroyCommandPool) X(AllocateCommandBuffers) X(ResetCommandPool) \
    X(BeginCommandBuffer) X(EndCommandBuffer) X(CmdBindPipeline) X(CmdBindDescriptorSets) \
    X(CmdPushConstants) X(CmdDispatch) X(CmdPipelineBarrier) X(CmdCopyBuffer) X(CmdFillBuffer) \
    X(CreateFence) X(DestroyFence) X(ResetFences) X(WaitForFences) X(QueueSubmit) X(CreateQueryPool) \
    X(DestroyQueryPool) X(CmdResetQueryPool) X(CmdWriteTimestamp) X(GetQueryPoolResults)
#define VK_DEVICE_FUNCTIONS_OPTIONAL(X) \
    X(GetPipelineExecutablePropertiesKHR) X(GetPipelineExecutableStatisticsKHR) \
    X(GetPipelineExecutableInternalRepresentationsKHR) X(GetMemoryHostPointerPropertiesEXT)

#define VK_FUNCTION_MEMBER(name) PFN_vk##name name;

/* What a device calls. A test may put functions of its own in (fault loops). */
typedef struct vk_api {
    void                     *library;
    PFN_vkGetInstanceProcAddr GetInstanceProcAddr;
    VK_GLOBAL_FUNCTIONS(VK_FUNCTION_MEMBER)
    VK_INSTANCE_FUNCTIONS(VK_FUNCTION_MEMBER)
    VK_INSTANCE_FUNCTIONS_1_1(VK_FUNCTION_MEMBER)
    VK_INSTANCE_FUNCTIONS_OPTIONAL(VK_FUNCTION_MEMBER)
    VK_DEVICE_FUNCTIONS(VK_FUNCTION_MEMBER)
    VK_DEVICE_FUNCTIONS_OPTIONAL(VK_FUNCTION_MEMBER)
} vk_api;

#ifndef NOVA_VK_FILTER
/* A test may define this before it includes nova.c: gets every function that is found and gives what is to be called. */
#define NOVA_VK_FILTER(name, function) (function)
#endif

/* Loads the system's Vulkan library, or takes the host's vkGetInstanceProcAddr. Errors: DEVICE (there is none). */
static nova_result vk_api_open(vk_api *api, PFN_vkGetInstanceProcAddr host, nova_error *error);
static void        vk_api_close(vk_api *api);
/* The functions of an instance, then of a device. Errors: DEVICE (one is missing, by name). */
static nova_result vk_api_instance(vk_api *api, VkInstance instance, nova_error *error);
static nova_result vk_api_device(vk_api *api, VkDevice device, nova_error *error);

/* "VK_ERROR_DEVICE_LOST", or the number. Fills `error` for a call that failed: DEVICE, or MEMORY when it says so. */
static nova_result vk_fail(nova_error *error, VkResult result, const char *what);
#define VK_TRY(call, what)                                              \
    do {                                                                \
        VkResult vk_try_result = (call);                                \
        if (vk_try_result != VK_SUCCESS) return vk_fail(error, vk_try_result, what); \
    } while (0)

#endif
#endif
