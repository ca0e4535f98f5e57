/* Vulkan under test: fails the Nth call, counts objects that live, lowers a device's limits, calls a CPU a GPU. Include it
 * before nova.c, whose NOVA_VK_FILTER it defines; nothing of Vulkan is called by name here. */
#ifndef NOVA_VK_FAULTS_H
#define NOVA_VK_FAULTS_H

#include <stdint.h>
#include <string.h>
#define VK_NO_PROTOTYPES
#include <vulkan/vulkan_core.h>

typedef struct vk_faults {
    long     seen, at;            /* calls that can fail; the at-th does, 0: none */
    VkResult code;
    long     live;                /* objects made and not destroyed */
    uint64_t max_range, max_alloc;   /* 0: the device's own */
    int      uncached;            /* device memory is mapped, but not cached, as over a bus */
    int      pretend_discrete;    /* every device says that it is a discrete GPU */
    int      lost;                /* behind a fault: all further work on the device fails, as a lost one's does */
    long     waits, wait_at;      /* waits for a fence; the wait_at-th fails at once, with the work still going on */
} vk_faults;

static vk_faults vkf;

static int vkf_fails(void) {
    if (vkf.at && __atomic_add_fetch(&vkf.seen, 1, __ATOMIC_SEQ_CST) == vkf.at) return 1;
    return 0;
}

/* One wrapper: parameters with and without types; `live` is what a success adds. */
#define VKF_CALL(name, params, args, live_change)                \
    static PFN_vk##name vkf_real_##name;                         \
    static VKAPI_ATTR VkResult VKAPI_CALL vkf_##name params {    \
        if (vkf_fails()) return vkf.code;                        \
        VkResult r = vkf_real_##name args;                       \
        if (r == VK_SUCCESS) __atomic_add_fetch(&vkf.live, (long)(live_change), __ATOMIC_SEQ_CST); \
        return r;                                                \
    }

#define VKF_MAKE(name, parent, info, object)                                                                       \
    VKF_CALL(name, (parent d, const info *i, const VkAllocationCallbacks *a, object *o), (d, i, a, o), 1)

#define VKF_DESTROY(name, parent, object)                                                                  \
    static PFN_vk##name vkf_real_##name;                                                                   \
    static VKAPI_ATTR void VKAPI_CALL vkf_##name(parent d, object o, const VkAllocationCallbacks *a) {     \
        if (o) __atomic_add_fetch(&vkf.live, -1, __ATOMIC_SEQ_CST);                                        \
        vkf_real_##name(d, o, a);                                                                          \
    }

VKF_CALL(CreateInstance, (const VkInstanceCreateInfo *i, const VkAllocationCallbacks *a, VkInstance *o), (i, a, o), 1)
VKF_CALL(EnumerateInstanceVersion, (uint32_t *v), (v), 0)
VKF_CALL(EnumeratePhysicalDevices, (VkInstance i, uint32_t *n, VkPhysicalDevice *p), (i, n, p), 0)
VKF_CALL(EnumerateDeviceExtensionProperties, (VkPhysicalDevice p, const char *l, uint32_t *n, VkExtensionProperties *e), (p, l, n, e), 0)
VKF_MAKE(CreateDevice, VkPhysicalDevice, VkDeviceCreateInfo, VkDevice)
VKF_MAKE(AllocateMemory, VkDevice, VkMemoryAllocateInfo, VkDeviceMemory)
VKF_MAKE(CreateBuffer, VkDevice, VkBufferCreateInfo, VkBuffer)
VKF_MAKE(CreateShaderModule, VkDevice, VkShaderModuleCreateInfo, VkShaderModule)
VKF_MAKE(CreatePipelineCache, VkDevice, VkPipelineCacheCreateInfo, VkPipelineCache)
VKF_MAKE(CreatePipelineLayout, VkDevice, VkPipelineLayoutCreateInfo, VkPipelineLayout)
VKF_MAKE(CreateDescriptorSetLayout, VkDevice, VkDescriptorSetLayoutCreateInfo, VkDescriptorSetLayout)
VKF_MAKE(CreateDescriptorPool, VkDevice, VkDescriptorPoolCreateInfo, VkDescriptorPool)
VKF_MAKE(CreateCommandPool, VkDevice, VkCommandPoolCreateInfo, VkCommandPool)
VKF_MAKE(CreateFence, VkDevice, VkFenceCreateInfo, VkFence)
VKF_MAKE(CreateQueryPool, VkDevice, VkQueryPoolCreateInfo, VkQueryPool)
VKF_CALL(CreateComputePipelines,
         (VkDevice d, VkPipelineCache c, uint32_t n, const VkComputePipelineCreateInfo *i, const VkAllocationCallbacks *a, VkPipeline *o),
         (d, c, n, i, a, o), n)
VKF_CALL(MapMemory, (VkDevice d, VkDeviceMemory m, VkDeviceSize o, VkDeviceSize s, VkMemoryMapFlags f, void **p), (d, m, o, s, f, p), 0)
VKF_CALL(BindBufferMemory, (VkDevice d, VkBuffer b, VkDeviceMemory m, VkDeviceSize o), (d, b, m, o), 0)
VKF_CALL(AllocateDescriptorSets, (VkDevice d, const VkDescriptorSetAllocateInfo *i, VkDescriptorSet *s), (d, i, s), 0)
VKF_CALL(AllocateCommandBuffers, (VkDevice d, const VkCommandBufferAllocateInfo *i, VkCommandBuffer *c), (d, i, c), 0)
VKF_CALL(ResetCommandPool, (VkDevice d, VkCommandPool p, VkCommandPoolResetFlags f), (d, p, f), 0)
VKF_CALL(BeginCommandBuffer, (VkCommandBuffer c, const VkCommandBufferBeginInfo *i), (c, i), 0)
VKF_CALL(EndCommandBuffer, (VkCommandBuffer c), (c), 0)
VKF_CALL(ResetFences, (VkDevice d, uint32_t n, const VkFence *f), (d, n, f), 0)
VKF_CALL(QueueSubmit, (VkQueue q, uint32_t n, const VkSubmitInfo *i, VkFence f), (q, n, i, f), 0)
VKF_CALL(DeviceWaitIdle, (VkDevice d), (d), 0)

/* Waiting must not be cut short where it is the fence's wait that fails: the work goes on and its memory would go away under it. */
static void (*vkf_on_wait)(void);   /* called by every wait for a fence */
static PFN_vkWaitForFences vkf_real_WaitForFences;
static VKAPI_ATTR VkResult VKAPI_CALL vkf_WaitForFences(VkDevice d, uint32_t n, const VkFence *f, VkBool32 all, uint64_t ns) {
    if (vkf_on_wait) vkf_on_wait();
    if (vkf.wait_at && ++vkf.waits == vkf.wait_at) return vkf.code;
    VkResult r = vkf_real_WaitForFences(d, n, f, all, ns);
    return vkf_fails() ? vkf.code : r;
}

static PFN_vkDestroyInstance vkf_real_DestroyInstance;
static VKAPI_ATTR void VKAPI_CALL vkf_DestroyInstance(VkInstance i, const VkAllocationCallbacks *a) {
    if (i) vkf.live--;
    vkf_real_DestroyInstance(i, a);
}
static PFN_vkDestroyDevice vkf_real_DestroyDevice;
static VKAPI_ATTR void VKAPI_CALL vkf_DestroyDevice(VkDevice d, const VkAllocationCallbacks *a) {
    if (d) vkf.live--;
    vkf_real_DestroyDevice(d, a);
}
VKF_DESTROY(FreeMemory, VkDevice, VkDeviceMemory)
VKF_DESTROY(DestroyBuffer, VkDevice, VkBuffer)
VKF_DESTROY(DestroyShaderModule, VkDevice, VkShaderModule)
VKF_DESTROY(DestroyPipelineCache, VkDevice, VkPipelineCache)
VKF_DESTROY(DestroyPipelineLayout, VkDevice, VkPipelineLayout)
VKF_DESTROY(DestroyDescriptorSetLayout, VkDevice, VkDescriptorSetLayout)
VKF_DESTROY(DestroyDescriptorPool, VkDevice, VkDescriptorPool)
VKF_DESTROY(DestroyCommandPool, VkDevice, VkCommandPool)
VKF_DESTROY(DestroyFence, VkDevice, VkFence)
VKF_DESTROY(DestroyQueryPool, VkDevice, VkQueryPool)
VKF_DESTROY(DestroyPipeline, VkDevice, VkPipeline)

static PFN_vkGetPhysicalDeviceProperties vkf_real_GetPhysicalDeviceProperties;
static VKAPI_ATTR void VKAPI_CALL vkf_GetPhysicalDeviceProperties(VkPhysicalDevice p, VkPhysicalDeviceProperties *out) {
    vkf_real_GetPhysicalDeviceProperties(p, out);
    if (vkf.pretend_discrete) out->deviceType = VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU;
}

static PFN_vkGetPhysicalDeviceProperties2 vkf_real_GetPhysicalDeviceProperties2;
static VKAPI_ATTR void VKAPI_CALL vkf_GetPhysicalDeviceProperties2(VkPhysicalDevice p, VkPhysicalDeviceProperties2 *out) {
    vkf_real_GetPhysicalDeviceProperties2(p, out);
    if (vkf.max_range) out->properties.limits.maxStorageBufferRange = (uint32_t)vkf.max_range;
    for (VkBaseOutStructure *s = (VkBaseOutStructure *)out->pNext; s; s = s->pNext)
        if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_3_PROPERTIES && vkf.max_alloc)
            ((VkPhysicalDeviceMaintenance3Properties *)(void *)s)->maxMemoryAllocationSize = vkf.max_alloc;
}

static PFN_vkGetPhysicalDeviceMemoryProperties2 vkf_real_GetPhysicalDeviceMemoryProperties2;
static VKAPI_ATTR void VKAPI_CALL vkf_GetPhysicalDeviceMemoryProperties2(VkPhysicalDevice p, VkPhysicalDeviceMemoryProperties2 *out) {
    vkf_real_GetPhysicalDeviceMemoryProperties2(p, out);
    for (uint32_t i = 0; vkf.uncached && i < out->memoryProperties.memoryTypeCount; i++)
        out->memoryProperties.memoryTypes[i].propertyFlags &= ~(VkMemoryPropertyFlags)VK_MEMORY_PROPERTY_HOST_CACHED_BIT;
}

#define VKF_WRAPPED(X)                                                                                             \
    X(CreateInstance) X(EnumerateInstanceVersion) X(EnumeratePhysicalDevices) X(EnumerateDeviceExtensionProperties) \
    X(CreateDevice) X(AllocateMemory) X(CreateBuffer) X(CreateShaderModule) X(CreatePipelineCache)                 \
    X(CreatePipelineLayout) X(CreateDescriptorSetLayout) X(CreateDescriptorPool) X(CreateCommandPool)              \
    X(CreateFence) X(CreateQueryPool) X(CreateComputePipelines) X(MapMemory) X(BindBufferMemory)                   \
    X(AllocateDescriptorSets) X(AllocateCommandBuffers) X(ResetCommandPool) X(BeginCommandBuffer)                  \
    X(EndCommandBuffer) X(ResetFences) X(QueueSubmit) X(DeviceWaitIdle) X(WaitForFences) X(DestroyInstance)        \
    X(DestroyDevice) X(FreeMemory) X(DestroyBuffer) X(DestroyShaderModule) X(DestroyPipelineCache)                 \
    X(DestroyPipelineLayout) X(DestroyDescriptorSetLayout) X(DestroyDescriptorPool) X(DestroyCommandPool)          \
    X(DestroyFence) X(DestroyQueryPool) X(DestroyPipeline) X(GetPhysicalDeviceProperties)                          \
    X(GetPhysicalDeviceProperties2) X(GetPhysicalDeviceMemoryProperties2)

static PFN_vkVoidFunction vkf_filter(const char *name, PFN_vkVoidFunction real) {
#define VKF_ROW(n)                                   \
    if (real && !strcmp(name, "vk" #n)) {            \
        vkf_real_##n = (PFN_vk##n)real;              \
        return (PFN_vkVoidFunction)vkf_##n;          \
    }
    VKF_WRAPPED(VKF_ROW)
    return real;
}
#define NOVA_VK_FILTER(name, function) vkf_filter(name, function)

#endif
