/* Finding and opening a device, and its memory: see vk_device.h. */
#include "vk_device.h"

#ifndef NOVA_NO_VULKAN

#define VK_MOST_DEVICES  16
#define VK_BLOCK_DEVICE  ((uint64_t)64 << 20)   /* least size of a block of device memory */
#define VK_BLOCK_HOST    ((uint64_t)1 << 20)
#define VK_BLOCK_MOST    ((uint64_t)1 << 30)   /* greatest, but for a slice that is larger */
#define VK_BLOCK_ROUND   ((uint64_t)64 << 10)   /* what drivers may round a block up by */
#define VK_SLICE_ALIGN   256                    /* the largest alignment that a binding's offset may need */
#define VK_STAGING       ((uint64_t)4 << 20)     /* of one stage */
#define VK_WAIT_NS       ((uint64_t)300 * 1000000000u)   /* behind which a device counts as hung */

/* ---- What a device can ---- */

typedef struct extension_list {
    VkExtensionProperties *at;
    uint32_t               n;
} extension_list;

static bool has_extension(const extension_list *l, const char *name) {
    for (uint32_t i = 0; i < l->n; i++)
        if (!strcmp(l->at[i].extensionName, name)) return true;
    return false;
}

static nova_result list_extensions(const vk_api *api, const host *h, VkPhysicalDevice p, extension_list *l, nova_error *error) {
    l->at = NULL, l->n = 0;
    VK_TRY(api->EnumerateDeviceExtensionProperties(p, NULL, &l->n, NULL), "asking for a device's extensions");
    if (l->n == 0) return NOVA_OK;
    l->at = (VkExtensionProperties *)mem_zalloc(h, l->n * sizeof *l->at);
    if (!l->at) return fail_memory(error, l->n * sizeof *l->at, "a device's extensions");
    uint32_t n = l->n;
    VkResult r = api->EnumerateDeviceExtensionProperties(p, NULL, &n, l->at);
    if (r == VK_SUCCESS || r == VK_INCOMPLETE) return NOVA_OK;   /* incomplete: the rest stays empty text */
    mem_free(h, l->at, l->n * sizeof *l->at);
    l->at = NULL, l->n = 0;
    return vk_fail(error, r, "asking for a device's extensions");
}

/* The features that nova uses, as a chain; zeroed where not asked. */
typedef struct feature_chain {
    VkPhysicalDeviceFeatures2                              all;
    VkPhysicalDevice16BitStorageFeatures                   storage16;
    VkPhysicalDevice8BitStorageFeatures                    storage8;
    VkPhysicalDeviceShaderFloat16Int8Features              small_types;
    VkPhysicalDeviceShaderIntegerDotProductFeaturesKHR     dot;
    VkPhysicalDeviceSubgroupSizeControlFeaturesEXT         sized;
    VkPhysicalDeviceCooperativeMatrixFeaturesKHR           matrix;
    VkPhysicalDeviceVulkanMemoryModelFeatures              memory_model;
    VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR executable;
} feature_chain;

static void chain(void **tail, void *next, VkStructureType type, size_t size) {
    VkBaseOutStructure *s = (VkBaseOutStructure *)next, *last = (VkBaseOutStructure *)*tail;
    memset(next, 0, size);
    s->sType    = type;
    last->pNext = s;
    *tail       = next;
}

/* What was promoted into the core of a version needs no extension there. */
static bool offers(const extension_list *l, uint32_t api, uint32_t core, const char *name) {
    return api >= core || has_extension(l, name);
}

static void chain_features(feature_chain *f, const extension_list *l, uint32_t api) {
    void *tail = &f->all;
    memset(f, 0, sizeof *f);
    f->all.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2;
#define CHAIN(member, type) chain(&tail, &f->member, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_##type, sizeof f->member)
    CHAIN(storage16, 16BIT_STORAGE_FEATURES);
    if (offers(l, api, VK_API_VERSION_1_2, "VK_KHR_8bit_storage")) CHAIN(storage8, 8BIT_STORAGE_FEATURES);
    if (offers(l, api, VK_API_VERSION_1_2, "VK_KHR_shader_float16_int8")) CHAIN(small_types, SHADER_FLOAT16_INT8_FEATURES);
    if (offers(l, api, VK_API_VERSION_1_3, "VK_KHR_shader_integer_dot_product")) CHAIN(dot, SHADER_INTEGER_DOT_PRODUCT_FEATURES_KHR);
    if (offers(l, api, VK_API_VERSION_1_3, "VK_EXT_subgroup_size_control")) CHAIN(sized, SUBGROUP_SIZE_CONTROL_FEATURES_EXT);
    if (has_extension(l, VK_KHR_COOPERATIVE_MATRIX_EXTENSION_NAME)) CHAIN(matrix, COOPERATIVE_MATRIX_FEATURES_KHR);
    if (offers(l, api, VK_API_VERSION_1_2, "VK_KHR_vulkan_memory_model")) CHAIN(memory_model, VULKAN_MEMORY_MODEL_FEATURES);
    if (has_extension(l, "VK_KHR_pipeline_executable_properties"))
        CHAIN(executable, PIPELINE_EXECUTABLE_PROPERTIES_FEATURES_KHR);
#undef CHAIN
}

/* Abilities by features, and the extensions that using them takes where they are no part of the core. */
static uint32_t abilities(const feature_chain *f) {
    uint32_t can = 0;
    if (f->storage16.storageBuffer16BitAccess) can |= VK_CAN_STORAGE16;
    if (f->storage8.storageBuffer8BitAccess) can |= VK_CAN_STORAGE8;
    if (f->small_types.shaderFloat16) can |= VK_CAN_F16;
    if (f->small_types.shaderInt8) can |= VK_CAN_INT8;
    if (f->dot.shaderIntegerDotProduct) can |= VK_CAN_DOT;
    if (f->sized.subgroupSizeControl && f->sized.computeFullSubgroups) can |= VK_CAN_SIZED;
    if (f->matrix.cooperativeMatrix && f->memory_model.vulkanMemoryModel && f->small_types.shaderFloat16) can |= VK_CAN_MATRIX;
    if (f->executable.pipelineExecutableInfo) can |= VK_CAN_EXECUTABLE;
    return can;
}

static void ask_matrices(const vk_api *api, VkPhysicalDevice p, vk_caps *c) {
    VkCooperativeMatrixPropertiesKHR props[64];
    uint32_t n = COUNT_OF(props);
    for (uint32_t i = 0; i < n; i++) {
        memset(&props[i], 0, sizeof props[i]);
        props[i].sType = VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_PROPERTIES_KHR;
    }
    if (!api->GetPhysicalDeviceCooperativeMatrixPropertiesKHR) return;
    VkResult r = api->GetPhysicalDeviceCooperativeMatrixPropertiesKHR(p, &n, props);
    if (r != VK_SUCCESS && r != VK_INCOMPLETE) return;
    for (uint32_t i = 0; i < n && c->n_matrices < VK_MATRICES; i++) {
        if (props[i].scope != VK_SCOPE_SUBGROUP_KHR || props[i].saturatingAccumulation || props[i].CType != props[i].ResultType) continue;
        vk_matrix *m = &c->matrices[c->n_matrices++];
        m->m = props[i].MSize, m->n = props[i].NSize, m->k = props[i].KSize;
        m->a = props[i].AType, m->b = props[i].BType, m->c = props[i].CType;
    }
}

static void ask_memory(const vk_api *api, VkPhysicalDevice p, vk_caps *c) {
    VkPhysicalDeviceMemoryProperties         *memory = &c->memory;
    VkPhysicalDeviceMemoryBudgetPropertiesEXT budget;
    VkPhysicalDeviceMemoryProperties2         all;
    memset(&budget, 0, sizeof budget);
    memset(&all, 0, sizeof all);
    all.sType    = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2;
    budget.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT;
    if (c->can & VK_CAN_BUDGET) all.pNext = &budget;
    api->GetPhysicalDeviceMemoryProperties2(p, &all);
    *memory    = all.memoryProperties;
    c->unified = true;
    for (uint32_t i = 0; i < memory->memoryHeapCount; i++) {
        if (!(memory->memoryHeaps[i].flags & VK_MEMORY_HEAP_DEVICE_LOCAL_BIT)) continue;
        if (memory->memoryHeaps[i].size <= c->heap_bytes) continue;
        c->heap_bytes = c->heap_free = memory->memoryHeaps[i].size;
        if (budget.heapBudget[i]) c->heap_free = budget.heapBudget[i] > budget.heapUsage[i] ? budget.heapBudget[i] - budget.heapUsage[i] : 0;
    }
    for (uint32_t i = 0; i < memory->memoryTypeCount; i++) {
        VkMemoryPropertyFlags f = memory->memoryTypes[i].propertyFlags;
        if ((f & VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT) && !(f & VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT) &&
            !(f & (VK_MEMORY_PROPERTY_PROTECTED_BIT | VK_MEMORY_PROPERTY_LAZILY_ALLOCATED_BIT)))
            c->unified = false;
    }
}

static void ask_properties(const vk_api *api, VkPhysicalDevice p, const extension_list *l, vk_caps *c) {
    VkPhysicalDeviceProperties2                              all;
    VkPhysicalDeviceSubgroupProperties                       subgroup;
    VkPhysicalDeviceMaintenance3Properties                   sizes;
    VkPhysicalDeviceSubgroupSizeControlPropertiesEXT         sized;
    VkPhysicalDeviceShaderIntegerDotProductPropertiesKHR     dot;
    VkPhysicalDeviceExternalMemoryHostPropertiesEXT          host_memory;
    void *tail = &all;
    memset(&all, 0, sizeof all);
    memset(&host_memory, 0, sizeof host_memory);
    memset(&sized, 0, sizeof sized);
    memset(&dot, 0, sizeof dot);
    all.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2;
    chain(&tail, &subgroup, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES, sizeof subgroup);
    chain(&tail, &sizes, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_3_PROPERTIES, sizeof sizes);
    if (offers(l, c->api, VK_API_VERSION_1_3, "VK_EXT_subgroup_size_control"))
        chain(&tail, &sized, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_PROPERTIES_EXT, sizeof sized);
    if (offers(l, c->api, VK_API_VERSION_1_3, "VK_KHR_shader_integer_dot_product"))
        chain(&tail, &dot, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_PROPERTIES_KHR, sizeof dot);
    if (c->can & VK_CAN_IMPORT)
        chain(&tail, &host_memory, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_MEMORY_HOST_PROPERTIES_EXT, sizeof host_memory);
    api->GetPhysicalDeviceProperties2(p, &all);

    const VkPhysicalDeviceLimits *limits = &all.properties.limits;
    const VkSubgroupFeatureFlags  needed = VK_SUBGROUP_FEATURE_BASIC_BIT | VK_SUBGROUP_FEATURE_ARITHMETIC_BIT | VK_SUBGROUP_FEATURE_SHUFFLE_BIT;
    if ((subgroup.supportedStages & VK_SHADER_STAGE_COMPUTE_BIT) && (subgroup.supportedOperations & needed) == needed)
        c->can |= VK_CAN_SUBGROUP;
    c->subgroup = subgroup.subgroupSize ? subgroup.subgroupSize : 1;
    c->subgroup_min = c->subgroup_max = c->subgroup;
    if (sized.maxSubgroupSize) c->subgroup_min = sized.minSubgroupSize, c->subgroup_max = sized.maxSubgroupSize;
    if (!(sized.requiredSubgroupSizeStages & VK_SHADER_STAGE_COMPUTE_BIT)) c->can &= ~(uint32_t)VK_CAN_SIZED;
    c->dot_fast      = dot.integerDotProduct4x8BitPackedSignedAccelerated;
    c->max_workgroup = limits->maxComputeWorkGroupInvocations < limits->maxComputeWorkGroupSize[0]
                           ? limits->maxComputeWorkGroupInvocations : limits->maxComputeWorkGroupSize[0];
    c->max_shared   = limits->maxComputeSharedMemorySize;
    c->max_range    = limits->maxStorageBufferRange;
    c->max_alloc    = sizes.maxMemoryAllocationSize ? sizes.maxMemoryAllocationSize : (uint64_t)1 << 30;
    c->align        = limits->minStorageBufferOffsetAlignment;
    c->import_align = host_memory.minImportedHostPointerAlignment;
    c->max_bindings = limits->maxPerStageDescriptorStorageBuffers < limits->maxDescriptorSetStorageBuffers
                          ? limits->maxPerStageDescriptorStorageBuffers : limits->maxDescriptorSetStorageBuffers;
    c->timestamp_ns = limits->timestampComputeAndGraphics ? limits->timestampPeriod : 0.0f;
}

static nova_result ask_device(const vk_api *api, const host *h, VkPhysicalDevice p, vk_caps *c, nova_error *error) {
    VkPhysicalDeviceProperties props;
    extension_list             l;
    memset(c, 0, sizeof *c);
    api->GetPhysicalDeviceProperties(p, &props);
    memcpy(c->name, props.deviceName, sizeof c->name);
    c->name[sizeof c->name - 1] = 0;
    c->type = props.deviceType, c->vendor = props.vendorID, c->device = props.deviceID;
    c->api = props.apiVersion, c->driver_version = props.driverVersion;
    if (c->api < VK_API_VERSION_1_1) return NOVA_OK;   /* listed, never opened */
    TRY(list_extensions(api, h, p, &l, error));
    feature_chain f;
    chain_features(&f, &l, c->api);
    api->GetPhysicalDeviceFeatures2(p, &f.all);
    c->can = abilities(&f);
    if (has_extension(&l, "VK_EXT_memory_budget")) c->can |= VK_CAN_BUDGET;
    if (has_extension(&l, "VK_EXT_external_memory_host")) c->can |= VK_CAN_IMPORT;
    ask_properties(api, p, &l, c);
    if (c->can & VK_CAN_MATRIX) ask_matrices(api, p, c);
    if (!c->n_matrices) c->can &= ~(uint32_t)VK_CAN_MATRIX;
    ask_memory(api, p, c);
    mem_free(h, l.at, l.n * sizeof *l.at);
    return NOVA_OK;
}

/* ---- The instance ---- */

/* A loader that has this extension hides drivers which only come near to Vulkan, as MoltenVK, from those who do not ask. */
static bool offers_portability(const vk_api *api) {
    VkExtensionProperties at[64];
    uint32_t              n = COUNT_OF(at);
    VkResult              r = api->EnumerateInstanceExtensionProperties(NULL, &n, at);
    for (uint32_t i = 0; i < n && (r == VK_SUCCESS || r == VK_INCOMPLETE); i++)
        if (!strcmp(at[i].extensionName, "VK_KHR_portability_enumeration")) return true;
    return false;
}

static nova_result instance_open(vk_api *api, VkInstance *instance, nova_error *error) {
    uint32_t version = 0;
    VK_TRY(api->EnumerateInstanceVersion(&version), "asking for Vulkan's version");
    if (version < VK_API_VERSION_1_1) return fail(error, NOVA_ERROR_DEVICE, "Vulkan here is 1.0: 1.1 is the least");
    const char          *portability = "VK_KHR_portability_enumeration";
    VkApplicationInfo    app;
    VkInstanceCreateInfo info;
    memset(&app, 0, sizeof app);
    memset(&info, 0, sizeof info);
    app.sType            = VK_STRUCTURE_TYPE_APPLICATION_INFO;
    app.pEngineName      = "nova";
    app.apiVersion       = version < VK_API_VERSION_1_3 ? version : VK_API_VERSION_1_3;
    info.sType           = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO;
    info.pApplicationInfo = &app;
    if (offers_portability(api)) {
        info.flags                   = 1;   /* VK_INSTANCE_CREATE_ENUMERATE_PORTABILITY_BIT_KHR, which older headers lack */
        info.enabledExtensionCount   = 1;
        info.ppEnabledExtensionNames = &portability;
    }
    VK_TRY(api->CreateInstance(&info, NULL, instance), "opening Vulkan");
    nova_result result = vk_api_instance(api, *instance, error);
    if (result != NOVA_OK && api->DestroyInstance) {
        api->DestroyInstance(*instance, NULL);
        *instance = VK_NULL_HANDLE;
    }
    return result;
}

static nova_result list_physical(const vk_api *api, VkInstance instance, VkPhysicalDevice *out, uint32_t *n, nova_error *error) {
    *n = VK_MOST_DEVICES;
    VkResult r = api->EnumeratePhysicalDevices(instance, n, out);
    if (r != VK_SUCCESS && r != VK_INCOMPLETE) return vk_fail(error, r, "asking for Vulkan's devices");
    return NOVA_OK;
}

/* A device that does not answer is listed as one of Vulkan 1.0, which is never opened: the others are as good as before. */
static nova_result ask_or_skip(const vk_api *api, const host *h, VkPhysicalDevice p, vk_caps *out, nova_error *error) {
    nova_result result = ask_device(api, h, p, out, error);
    if (result == NOVA_OK || result == NOVA_ERROR_MEMORY) return result;
    out->api = VK_API_VERSION_1_0;
    return NOVA_OK;
}

static nova_result list_in_instance(const vk_api *api, const host *h, VkInstance instance, vk_caps *out, uint32_t capacity,
                                    uint32_t *n, nova_error *error) {
    VkPhysicalDevice devices[VK_MOST_DEVICES];
    TRY(list_physical(api, instance, devices, n, error));
    for (uint32_t i = 0; i < *n && i < capacity; i++) TRY(ask_or_skip(api, h, devices[i], &out[i], error));
    return NOVA_OK;
}

static nova_result vk_device_list(const host *h, vk_caps *out, uint32_t capacity, uint32_t *n, nova_error *error) {
    vk_api     api;
    VkInstance instance = VK_NULL_HANDLE;
    *n = 0;
    TRY(vk_api_open(&api, NULL, error));
    nova_result result = instance_open(&api, &instance, error);
    if (result == NOVA_OK) {
        result = list_in_instance(&api, h, instance, out, capacity, n, error);
        api.DestroyInstance(instance, NULL);
    }
    vk_api_close(&api);
    return result;
}

/* ---- Choosing ---- */

/* Greater is better; "auto" never takes a CPU. */
static uint64_t device_score(const vk_caps *c) {
    uint64_t kind = c->type == VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU ? 4 : c->type == VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU ? 3
                  : c->type == VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU ? 2 : 1;
    return kind << 56 | (c->heap_bytes & (((uint64_t)1 << 56) - 1));
}

/* The device that `want` names, or -1. */
static int device_by_name(const char *want, const vk_caps *caps, uint32_t n) {
    bool     only_real = !strcmp(want, "auto");
    int      best      = -1;
    if (!only_real && strncmp(want, "gpu", 3)) return -1;
    if (!strncmp(want, "gpu:", 4)) {
        char *end;
        long  index = strtol(want + 4, &end, 10);
        return *end == 0 && end != want + 4 && index >= 0 && index < (long)n && caps[index].api >= VK_API_VERSION_1_1 ? (int)index : -1;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (caps[i].api < VK_API_VERSION_1_1 || (only_real && caps[i].type == VK_PHYSICAL_DEVICE_TYPE_CPU)) continue;
        if (best < 0 || device_score(&caps[i]) > device_score(&caps[best])) best = (int)i;
    }
    return best;
}

static void drop_matrices(vk_device *d) {
    vk_caps *c = &d->caps;
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n_matrices; i++) {
        bool halves = c->matrices[i].a == VK_COMPONENT_TYPE_FLOAT16_KHR;
        if (halves ? !d->desc.no_matrix_f16 : !d->desc.no_matrix_s8) c->matrices[n++] = c->matrices[i];
    }
    c->n_matrices = n;
    if (n == 0) c->can &= ~(uint32_t)VK_CAN_MATRIX;
    if (!(c->can & VK_CAN_MATRIX)) c->n_matrices = 0;
}

/* What the kernels and their layout take and a device need not have. */
static nova_result check_caps(const vk_device *d, nova_error *error) {
    if (d->caps.max_bindings < VK_BINDINGS)
        return fail(error, NOVA_ERROR_DEVICE, "%s binds %u buffers to a kernel: %d are the least", d->caps.name, d->caps.max_bindings, VK_BINDINGS);
    if (d->caps.align > VK_SLICE_ALIGN)
        return fail(error, NOVA_ERROR_DEVICE, "%s aligns buffers to %llu bytes: %d are the most", d->caps.name,
                    (unsigned long long)d->caps.align, VK_SLICE_ALIGN);
    return NOVA_OK;
}

/* What the descriptor forbids. */
static void limit_caps(vk_device *d) {
    d->caps.can &= ~d->desc.without;
    drop_matrices(d);
    if (d->desc.as_gpu) d->caps.type = VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU, d->caps.dot_fast = 1;
    if (d->desc.max_range && d->desc.max_range < d->caps.max_range) d->caps.max_range = d->desc.max_range;
    if (d->desc.max_alloc && d->desc.max_alloc < d->caps.max_alloc) d->caps.max_alloc = d->desc.max_alloc;
}

static nova_result choose_device(vk_device *d, nova_error *error) {
    VkPhysicalDevice devices[VK_MOST_DEVICES];
    uint32_t         n;
    vk_caps         *caps = (vk_caps *)mem_zalloc(&d->h, VK_MOST_DEVICES * sizeof *caps);
    if (!caps) return fail_memory(error, VK_MOST_DEVICES * sizeof *caps, "the list of devices");
    nova_result result = list_physical(&d->api, d->instance, devices, &n, error);
    for (uint32_t i = 0; result == NOVA_OK && i < n; i++) result = ask_or_skip(&d->api, &d->h, devices[i], &caps[i], error);
    int chosen = result == NOVA_OK ? device_by_name(d->desc.want, caps, n) : -1;
    if (result == NOVA_OK && chosen < 0)
        result = fail(error, NOVA_ERROR_DEVICE, "device '%.32s': Vulkan has %u device%s here, none that fits", d->desc.want, n, n == 1 ? "" : "s");
    if (result == NOVA_OK) {
        d->physical = devices[chosen];
        d->caps     = caps[chosen];
        result      = check_caps(d, error);
    }
    mem_free(&d->h, caps, VK_MOST_DEVICES * sizeof *caps);
    limit_caps(d);
    return result;
}

static nova_result choose_family(vk_device *d, nova_error *error) {
    VkQueueFamilyProperties families[32];
    uint32_t n = COUNT_OF(families);
    d->api.GetPhysicalDeviceQueueFamilyProperties(d->physical, &n, families);
    for (d->family = 0; d->family < n; d->family++)
        if (families[d->family].queueFlags & VK_QUEUE_COMPUTE_BIT) break;
    if (d->family >= n) return fail(error, NOVA_ERROR_DEVICE, "%s has no queue that computes", d->caps.name);
    if (!families[d->family].timestampValidBits) d->caps.timestamp_ns = 0;
    return NOVA_OK;
}

/* ---- The device ---- */

/* Extensions to name where the device has them; features come by the chain. */
static const char *const wanted_extensions[] = {
    "VK_KHR_8bit_storage", "VK_KHR_shader_float16_int8", "VK_KHR_shader_integer_dot_product", "VK_EXT_subgroup_size_control",
    VK_KHR_COOPERATIVE_MATRIX_EXTENSION_NAME, "VK_KHR_vulkan_memory_model", "VK_KHR_pipeline_executable_properties",
    "VK_EXT_memory_budget", "VK_EXT_external_memory_host", "VK_KHR_portability_subset",
};

/* Only what is used is turned on: a driver may do less well with the rest. */
static void keep_used_features(feature_chain *f, uint32_t can) {
    memset(&f->all.features, 0, sizeof f->all.features);
    f->storage16.uniformAndStorageBuffer16BitAccess = f->storage16.storagePushConstant16 = f->storage16.storageInputOutput16 = 0;
    f->storage8.uniformAndStorageBuffer8BitAccess = f->storage8.storagePushConstant8 = 0;
    f->matrix.cooperativeMatrixRobustBufferAccess = 0;
    if (!(can & VK_CAN_STORAGE16)) f->storage16.storageBuffer16BitAccess = 0;
    if (!(can & VK_CAN_STORAGE8)) f->storage8.storageBuffer8BitAccess = 0;
    if (!(can & VK_CAN_F16)) f->small_types.shaderFloat16 = 0;
    if (!(can & VK_CAN_INT8)) f->small_types.shaderInt8 = 0;
    if (!(can & VK_CAN_DOT)) f->dot.shaderIntegerDotProduct = 0;
    if (!(can & VK_CAN_MATRIX)) f->matrix.cooperativeMatrix = 0;
}

static nova_result create_device(vk_device *d, nova_error *error) {
    extension_list l;
    feature_chain  f;
    const char    *names[COUNT_OF(wanted_extensions)];
    float          priority = 0.5f;
    VkDeviceQueueCreateInfo queue;
    VkDeviceCreateInfo      info;
    TRY(list_extensions(&d->api, &d->h, d->physical, &l, error));
    chain_features(&f, &l, d->caps.api);
    d->api.GetPhysicalDeviceFeatures2(d->physical, &f.all);
    keep_used_features(&f, d->caps.can);
    memset(&queue, 0, sizeof queue);
    memset(&info, 0, sizeof info);
    queue.sType            = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO;
    queue.queueFamilyIndex = d->family;
    queue.queueCount       = 1;
    queue.pQueuePriorities = &priority;
    info.sType                   = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO;
    info.pNext                   = &f.all;
    info.queueCreateInfoCount    = 1;
    info.pQueueCreateInfos       = &queue;
    info.ppEnabledExtensionNames = names;
    for (size_t i = 0; i < COUNT_OF(wanted_extensions); i++)
        if (has_extension(&l, wanted_extensions[i])) names[info.enabledExtensionCount++] = wanted_extensions[i];
    mem_free(&d->h, l.at, l.n * sizeof *l.at);
    VK_TRY(d->api.CreateDevice(d->physical, &info, NULL, &d->device), d->caps.name);
    TRY(vk_api_device(&d->api, d->device, error));
    d->api.GetDeviceQueue(d->device, d->family, 0, &d->queue);
    return NOVA_OK;
}

static nova_result create_fence(const vk_device *d, VkFence *fence, nova_error *error) {
    VkFenceCreateInfo info;
    memset(&info, 0, sizeof info);
    info.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO;
    VK_TRY(d->api.CreateFence(d->device, &info, NULL, fence), "a fence");
    return NOVA_OK;
}

static nova_result create_command_pool(const vk_device *d, VkCommandPoolCreateFlags flags, VkCommandPool *out, nova_error *error) {
    VkCommandPoolCreateInfo info;
    memset(&info, 0, sizeof info);
    info.sType            = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO;
    info.flags            = flags;
    info.queueFamilyIndex = d->family;
    VK_TRY(d->api.CreateCommandPool(d->device, &info, NULL, out), "a command pool");
    return NOVA_OK;
}

static nova_result create_layout(vk_device *d, nova_error *error) {
    VkDescriptorSetLayoutBinding    bindings[VK_BINDINGS];
    VkDescriptorSetLayoutCreateInfo set;
    VkPipelineLayoutCreateInfo      layout;
    VkPushConstantRange             push;
    memset(bindings, 0, sizeof bindings);
    memset(&set, 0, sizeof set);
    memset(&layout, 0, sizeof layout);
    for (uint32_t i = 0; i < COUNT_OF(bindings); i++) {
        bindings[i].binding         = i;
        bindings[i].descriptorType  = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER;
        bindings[i].descriptorCount = 1;
        bindings[i].stageFlags      = VK_SHADER_STAGE_COMPUTE_BIT;
    }
    set.sType        = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO;
    set.bindingCount = COUNT_OF(bindings);
    set.pBindings    = bindings;
    VK_TRY(d->api.CreateDescriptorSetLayout(d->device, &set, NULL, &d->set_layout), "the layout of descriptors");
    push.stageFlags = VK_SHADER_STAGE_COMPUTE_BIT;
    push.offset     = 0;
    push.size       = VK_PUSH * sizeof(uint32_t);
    layout.sType                  = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO;
    layout.setLayoutCount         = 1;
    layout.pSetLayouts            = &d->set_layout;
    layout.pushConstantRangeCount = 1;
    layout.pPushConstantRanges    = &push;
    VK_TRY(d->api.CreatePipelineLayout(d->device, &layout, NULL, &d->layout), "the layout of pipelines");
    return NOVA_OK;
}

/* ---- Kept pipelines ---- */

#define CACHE_MAGIC 0x31504e56u   /* "VNP1" */

/* In front of a driver's own bytes, which it must have made itself: a driver need not survive others. */
typedef struct cache_head {
    uint32_t magic, vendor, device, driver;
    uint8_t  uuid[VK_UUID_SIZE];
    uint64_t bytes, hash;
} cache_head;

static cache_head cache_head_of(const vk_device *d) {
    VkPhysicalDeviceProperties props;
    cache_head                 head;
    d->api.GetPhysicalDeviceProperties(d->physical, &props);
    memset(&head, 0, sizeof head);
    head.magic  = CACHE_MAGIC;
    head.vendor = props.vendorID, head.device = props.deviceID, head.driver = props.driverVersion;
    memcpy(head.uuid, props.pipelineCacheUUID, sizeof head.uuid);
    return head;
}

/* This device's bytes among those kept, or NULL. */
static const uint8_t *cache_find(const vk_device *d, size_t *size) {
    const uint8_t *p    = (const uint8_t *)d->desc.cache;
    size_t         left = p ? d->desc.cache_size : 0;
    cache_head     mine = cache_head_of(d), head;
    while (left > sizeof head) {
        memcpy(&head, p, sizeof head);
        if (head.magic != CACHE_MAGIC || head.bytes > left - sizeof head) return NULL;
        bool same = head.vendor == mine.vendor && head.device == mine.device && head.driver == mine.driver && !memcmp(head.uuid, mine.uuid, sizeof head.uuid);
        p += sizeof head;
        if (same && hash_bytes(p, (size_t)head.bytes, CACHE_MAGIC) == head.hash) {
            *size = (size_t)head.bytes;
            return p;
        }
        p += head.bytes;
        left -= sizeof head + (size_t)head.bytes;
    }
    return NULL;
}

static nova_result create_pipeline_cache(vk_device *d, nova_error *error) {
    VkPipelineCacheCreateInfo info;
    memset(&info, 0, sizeof info);
    info.sType        = VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO;
    info.pInitialData = cache_find(d, &info.initialDataSize);
    VK_TRY(d->api.CreatePipelineCache(d->device, &info, NULL, &d->cache), "the pipeline cache");
    return NOVA_OK;
}

static nova_result vk_cache_get(vk_device *d, text_buffer *out, nova_error *error) {
    cache_head head = cache_head_of(d);
    size_t     size = 0, at = out->n;
    VK_TRY(d->api.GetPipelineCacheData(d->device, d->cache, &size, NULL), "the pipeline cache");
    if (!text_append(out, (const char *)&head, sizeof head) || !text_reserve(out, size)) return fail_memory(error, size, "the pipeline cache");
    VkResult r = d->api.GetPipelineCacheData(d->device, d->cache, &size, out->p + out->n);
    if (r != VK_SUCCESS && r != VK_INCOMPLETE) return vk_fail(error, r, "the pipeline cache");
    head.bytes = size;
    head.hash  = hash_bytes(out->p + out->n, size, CACHE_MAGIC);
    memcpy(out->p + at, &head, sizeof head);
    out->n += size;
    return NOVA_OK;
}

/* ---- A device of the host's ---- */

/* Features that its chain says are on. */
static void take_features(feature_chain *f, const void *host_chain) {
    memset(f, 0, sizeof *f);
    for (const VkBaseInStructure *s = (const VkBaseInStructure *)host_chain; s; s = s->pNext) {
        const void *p = s;
#define TAKE(type, member) case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_##type: memcpy(&f->member, p, sizeof f->member); break;
        switch (s->sType) {
            TAKE(16BIT_STORAGE_FEATURES, storage16)
            TAKE(8BIT_STORAGE_FEATURES, storage8)
            TAKE(SHADER_FLOAT16_INT8_FEATURES, small_types)
            TAKE(SHADER_INTEGER_DOT_PRODUCT_FEATURES_KHR, dot)
            TAKE(SUBGROUP_SIZE_CONTROL_FEATURES_EXT, sized)
            TAKE(VULKAN_MEMORY_MODEL_FEATURES, memory_model)
            TAKE(PIPELINE_EXECUTABLE_PROPERTIES_FEATURES_KHR, executable)
        case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES:
            f->storage16.storageBuffer16BitAccess = ((const VkPhysicalDeviceVulkan11Features *)p)->storageBuffer16BitAccess;
            break;
        case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES:
            f->storage8.storageBuffer8BitAccess    = ((const VkPhysicalDeviceVulkan12Features *)p)->storageBuffer8BitAccess;
            f->small_types.shaderFloat16           = ((const VkPhysicalDeviceVulkan12Features *)p)->shaderFloat16;
            f->small_types.shaderInt8              = ((const VkPhysicalDeviceVulkan12Features *)p)->shaderInt8;
            f->memory_model.vulkanMemoryModel      = ((const VkPhysicalDeviceVulkan12Features *)p)->vulkanMemoryModel;
            break;
        case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_FEATURES:
            f->dot.shaderIntegerDotProduct = ((const VkPhysicalDeviceVulkan13Features *)p)->shaderIntegerDotProduct;
            f->sized.subgroupSizeControl   = ((const VkPhysicalDeviceVulkan13Features *)p)->subgroupSizeControl;
            f->sized.computeFullSubgroups  = ((const VkPhysicalDeviceVulkan13Features *)p)->computeFullSubgroups;
            break;
        default:   /* no constant of an enum in older headers */
            if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR) memcpy(&f->matrix, p, sizeof f->matrix);
            break;
        }
#undef TAKE
    }
}

static bool was_named(const nova_vulkan *v, const char *name) {
    for (uint32_t i = 0; i < v->n_extensions; i++)
        if (v->extensions && v->extensions[i] && !strcmp(v->extensions[i], name)) return true;
    return false;
}

static nova_result borrow(vk_device *d, const nova_vulkan *v, nova_error *error) {
    PFN_vkGetInstanceProcAddr get;
    feature_chain             f;
    if (!v->get_instance_proc_addr || !v->instance || !v->physical_device || !v->device || !v->queue)
        return fail(error, NOVA_ERROR_ARGUMENT, "nova_vulkan: a handle is NULL");
    memcpy(&get, &v->get_instance_proc_addr, sizeof get);
    d->borrowed = true;
    d->lock = v->lock, d->unlock = v->unlock, d->lock_user = v->lock_user;
    TRY(vk_api_open(&d->api, get, error));
    d->instance = (VkInstance)v->instance;
    d->physical = (VkPhysicalDevice)v->physical_device;
    TRY(vk_api_instance(&d->api, d->instance, error));
    TRY(ask_device(&d->api, &d->h, d->physical, &d->caps, error));
    if (d->caps.api < VK_API_VERSION_1_1) return fail(error, NOVA_ERROR_DEVICE, "%s has Vulkan 1.0: 1.1 is the least", d->caps.name);
    TRY(check_caps(d, error));
    take_features(&f, v->features);
    uint32_t known = VK_CAN_STORAGE16 | VK_CAN_STORAGE8 | VK_CAN_F16 | VK_CAN_INT8 | VK_CAN_DOT | VK_CAN_SIZED | VK_CAN_MATRIX | VK_CAN_EXECUTABLE;
    d->caps.can &= abilities(&f) | ~known;
    if (!was_named(v, "VK_EXT_memory_budget")) d->caps.can &= ~(uint32_t)VK_CAN_BUDGET;
    if (!was_named(v, "VK_EXT_external_memory_host")) d->caps.can &= ~(uint32_t)VK_CAN_IMPORT;
    limit_caps(d);
    d->device = (VkDevice)v->device;
    d->queue  = (VkQueue)v->queue;
    d->family = v->queue_family;
    return vk_api_device(&d->api, d->device, error);
}

static nova_result open_own(vk_device *d, nova_error *error) {
    TRY(vk_api_open(&d->api, NULL, error));
    TRY(instance_open(&d->api, &d->instance, error));
    TRY(choose_device(d, error));
    TRY(choose_family(d, error));
    return create_device(d, error);
}

static nova_result device_begin(vk_device *d, nova_error *error) {
    if (d->desc.given) TRY(borrow(d, d->desc.given, error));
    else TRY(open_own(d, error));
    TRY(create_fence(d, &d->fence, error));
    TRY(create_command_pool(d, 0, &d->pool, error));
    TRY(create_layout(d, error));
    return create_pipeline_cache(d, error);
}

static nova_result vk_device_open(vk_device **out, const host *h, const vk_device_desc *desc, nova_error *error) {
    vk_device *d = (vk_device *)mem_zalloc(h, sizeof *d);
    *out = NULL;
    if (!d) return fail_memory(error, sizeof *d, "a device");
    d->h    = *h;
    d->desc = *desc;
    if (!d->desc.want) d->desc.want = "auto";
    nova_result result = device_begin(d, error);
    d->desc.want  = NULL;   /* the caller's, and read no more */
    d->desc.given = NULL;
    d->desc.cache = NULL;
    if (result != NOVA_OK) {
        vk_device_close(d);
        return result;
    }
    *out = d;
    return NOVA_OK;
}

static void block_close(const vk_device *d, vk_block *b) {
    if (b->buffer) d->api.DestroyBuffer(d->device, b->buffer, NULL);
    if (b->memory) d->api.FreeMemory(d->device, b->memory, NULL);   /* unmaps too */
    memset(b, 0, sizeof *b);
}

static void device_objects_close(vk_device *d) {
    if (!d->borrowed) d->api.DeviceWaitIdle(d->device);   /* the host's queues are its own: there, own fences tell */
    vk_fence_wait(d, d->fence, &d->busy, NULL);
    for (uint32_t i = 0; i < d->n_pipelines; i++) d->api.DestroyPipeline(d->device, d->pipelines[i].handle, NULL);
    if (d->cache) d->api.DestroyPipelineCache(d->device, d->cache, NULL);
    if (d->layout) d->api.DestroyPipelineLayout(d->device, d->layout, NULL);
    if (d->set_layout) d->api.DestroyDescriptorSetLayout(d->device, d->set_layout, NULL);
    for (uint32_t i = 0; i < VK_STAGES; i++) {
        vk_fence_wait(d, d->stages[i].fence, &d->stages[i].busy, NULL);
        if (d->stages[i].fence) d->api.DestroyFence(d->device, d->stages[i].fence, NULL);
    }
    if (d->stage_pool) d->api.DestroyCommandPool(d->device, d->stage_pool, NULL);
    if (d->pool) d->api.DestroyCommandPool(d->device, d->pool, NULL);
    if (d->fence) d->api.DestroyFence(d->device, d->fence, NULL);
    for (uint32_t i = 0; i < d->n_blocks; i++) block_close(d, &d->blocks[i]);
}

static void vk_device_close(vk_device *d) {
    if (!d) return;
    host h = d->h;
    if (d->device && d->api.DeviceWaitIdle) device_objects_close(d);
    if (d->device && d->api.DestroyDevice && !d->borrowed) d->api.DestroyDevice(d->device, NULL);
    if (d->instance && d->api.DestroyInstance && !d->borrowed) d->api.DestroyInstance(d->instance, NULL);
    vk_api_close(&d->api);
    mem_free(&h, d->pipelines, d->cap_pipelines * sizeof *d->pipelines);
    mem_free(&h, d->blocks, d->cap_blocks * sizeof *d->blocks);
    mem_free(&h, d, sizeof *d);
}

/* ---- Memory ---- */

/* What the host may map and needs no flushing. */
#define VK_SEEN ((VkMemoryPropertyFlags)(VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT))

/* Flags that a memory type must have, and a further one that is preferred. */
static const struct {
    VkMemoryPropertyFlags must, rather;
} memory_wishes[VK_USE_COUNT][2] = {
    /* DEVICE, mapped where that costs nothing */
    {{VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT, 0}, {0, 0}},
    {{VK_SEEN, VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT}, {VK_SEEN, 0}},
    {{VK_SEEN, VK_MEMORY_PROPERTY_HOST_CACHED_BIT}, {VK_SEEN, 0}},
};

/* The host sees device memory at no cost where the type's heap is the device's whole one. */
static bool is_whole_heap(const vk_device *d, uint32_t type) {
    return d->caps.memory.memoryHeaps[d->caps.memory.memoryTypes[type].heapIndex].size >= d->caps.heap_bytes;
}

/* How well a type fits, 0: not at all. */
static int type_fits(const vk_device *d, uint32_t type, vk_use use, int wish) {
    VkMemoryPropertyFlags f     = d->caps.memory.memoryTypes[type].propertyFlags;
    VkMemoryPropertyFlags known = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT | VK_SEEN | VK_MEMORY_PROPERTY_HOST_CACHED_BIT;
    VkMemoryPropertyFlags never = ~known;   /* protected, lazily allocated; AMD's and NVIDIA's own, which take features */
    VkMemoryPropertyFlags must  = memory_wishes[use][wish].must, rather = memory_wishes[use][wish].rather;
    if ((f & must) != must || (f & never)) return 0;
    if (use == VK_USE_DEVICE) {
        if ((f & VK_SEEN) == VK_SEEN && is_whole_heap(d, type)) return d->desc.staged ? 2 : 3;
        return (f & VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT) ? 1 : 2;
    }
    return (f & rather) == rather ? 2 : 1;
}

static uint64_t vram_limit(const vk_device *d) {
    uint64_t limit = d->desc.vram_limit;
    return limit && limit < d->caps.heap_free ? limit : d->caps.heap_free;
}

/* Does memory of this type, for this use, count as the device's? What is read back lies in main memory wherever there is a choice. */
static bool is_counted(const vk_device *d, uint32_t type, vk_use use) {
    bool local = d->caps.memory.memoryTypes[type].propertyFlags & VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT;
    return use == VK_USE_DEVICE || (use == VK_USE_UPLOAD && local && is_whole_heap(d, type));
}

/* Memory types in the order in which they are tried; gives their number. `local`: device-local ones alone. */
static uint32_t order_types(const vk_device *d, vk_use use, uint32_t type_bits, uint64_t size, bool local, uint32_t out[VK_MAX_MEMORY_TYPES]) {
    uint32_t n = 0, tried = 0;
    for (int wish = 0; wish < (local ? 1 : 2); wish++)
        for (int fit = 3; fit > 0; fit--)
            for (uint32_t t = 0; t < d->caps.memory.memoryTypeCount; t++) {
                if (!(type_bits >> t & 1) || (tried >> t & 1) || type_fits(d, t, use, wish) != fit) continue;
                if (use != VK_USE_DEVICE && is_counted(d, t, use) && d->taken + size > vram_limit(d)) continue;
                tried |= (uint32_t)1 << t;
                out[n++] = t;
            }
    return n;
}

static nova_result map_block(vk_device *d, vk_block *b, VkMemoryPropertyFlags f, nova_error *error) {
    void *map = NULL;
    if ((f & VK_SEEN) != VK_SEEN || (b->use == VK_USE_DEVICE && d->desc.staged)) return NOVA_OK;
    VkResult r = d->api.MapMemory(d->device, b->memory, 0, VK_WHOLE_SIZE, 0, &map);
    if (r != VK_SUCCESS && b->use != VK_USE_DEVICE) return vk_fail(error, r, "mapping device memory");
    b->map    = r == VK_SUCCESS ? (uint8_t *)map : NULL;   /* addresses may be short: then it is not seen */
    b->cached = (f & VK_MEMORY_PROPERTY_HOST_CACHED_BIT) != 0;
    return NOVA_OK;
}

static nova_result allocate(vk_device *d, vk_block *b, const VkMemoryRequirements *need, bool local, nova_error *error) {
    VkMemoryAllocateInfo info;
    VkResult             r = VK_ERROR_OUT_OF_DEVICE_MEMORY;
    uint32_t             types[VK_MAX_MEMORY_TYPES], n = order_types(d, b->use, need->memoryTypeBits, need->size, local, types);
    char                 what[96];
    memset(&info, 0, sizeof info);
    info.sType          = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO;
    info.allocationSize = need->size;
    for (uint32_t i = 0; i < n; i++) {
        info.memoryTypeIndex = types[i];
        if (!d->desc.measure) r = d->api.AllocateMemory(d->device, &info, NULL, &b->memory);
        if (r != VK_SUCCESS && !d->desc.measure) {
            b->memory = VK_NULL_HANDLE;
            continue;
        }
        if (is_counted(d, types[i], b->use)) d->taken += need->size;
        return d->desc.measure ? NOVA_OK : map_block(d, b, d->caps.memory.memoryTypes[types[i]].propertyFlags, error);
    }
    snprintf(what, sizeof what, "%llu bytes of device memory", (unsigned long long)need->size);
    return vk_fail(error, r, what);
}

static nova_result beyond_limit(const vk_device *d, uint64_t size, nova_error *error) {
    return fail(error, NOVA_ERROR_MEMORY, "%llu bytes of device memory and %llu more are beyond the limit of %llu",
                (unsigned long long)d->taken, (unsigned long long)size, (unsigned long long)vram_limit(d));
}

static nova_result block_open(vk_device *d, vk_block *b, uint64_t size, bool local, nova_error *error) {
    VkBufferCreateInfo   info;
    VkMemoryRequirements need;
    memset(&info, 0, sizeof info);
    info.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO;
    info.size  = size;
    info.usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT;
    VK_TRY(d->api.CreateBuffer(d->device, &info, NULL, &b->buffer), "a buffer");
    d->api.GetBufferMemoryRequirements(d->device, b->buffer, &need);
    if (b->use == VK_USE_DEVICE && d->taken + need.size > vram_limit(d)) return beyond_limit(d, need.size, error);
    TRY(allocate(d, b, &need, local, error));
    b->size = size;
    if (d->desc.measure) return NOVA_OK;
    VK_TRY(d->api.BindBufferMemory(d->device, b->buffer, b->memory, 0), "binding device memory");
    if (b->use != VK_USE_DEVICE && b->map) memset(b->map, 0, (size_t)size);
    return NOVA_OK;
}

static uint64_t most_block(const vk_device *d) { return d->caps.max_alloc < VK_BLOCK_MOST ? d->caps.max_alloc : VK_BLOCK_MOST; }

/* A block that is left behind has less free than the slice that did not fit; large slices have blocks of their own. Drivers round
 * each block up. */
static uint64_t vk_blocks_waste(const vk_device *d, uint64_t total, uint64_t largest) {
    uint64_t most = most_block(d), large = most / 4 + 1;
    if (largest > large) largest = large;
    return total / (most - largest + 1) * largest + (1 + total / large) * VK_BLOCK_ROUND;
}

/* As much as is still expected, in few blocks. */
static uint64_t block_size(const vk_device *d, vk_use use, uint64_t least) {
    uint64_t size = VK_BLOCK_HOST, limit = vram_limit(d);
    if (use == VK_USE_DEVICE) {
        size = !d->expected ? VK_BLOCK_DEVICE : d->expected < VK_BLOCK_MOST ? d->expected : VK_BLOCK_MOST;
        if (d->expected && least > most_block(d) / 4) size = least;
        if (d->taken + size > limit) size = limit > d->taken ? (limit - d->taken) & ~(uint64_t)(VK_SLICE_ALIGN - 1) : 0;
    }
    if (size > d->caps.max_alloc) size = d->caps.max_alloc & ~(uint64_t)(VK_SLICE_ALIGN - 1);
    return size < least ? least : size;
}

/* A further block, counted at once: closing takes back what it has got by then. */
static nova_result block_new(vk_device *d, vk_use use, vk_block **out, nova_error *error) {
    if (d->n_blocks == d->cap_blocks) {
        uint32_t  cap = d->cap_blocks ? 2 * d->cap_blocks : 16;
        vk_block *more = (vk_block *)mem_resize(&d->h, d->blocks, d->cap_blocks * sizeof *more, cap * sizeof *more);
        if (!more) return fail_memory(error, cap * sizeof *more, "device memory blocks");
        d->blocks = more, d->cap_blocks = cap;
    }
    *out = &d->blocks[d->n_blocks++];
    memset(*out, 0, sizeof **out);
    (*out)->use = use;
    return NOVA_OK;
}

static nova_result block_add(vk_device *d, vk_use use, uint64_t least, nova_error *error) {
    uint64_t  size = block_size(d, use, least);
    vk_block *b;
    if (size > d->caps.max_alloc)
        return fail(error, NOVA_ERROR_MEMORY, "%llu bytes at once are beyond the device's %llu", (unsigned long long)least,
                    (unsigned long long)d->caps.max_alloc);
    if (use == VK_USE_DEVICE && d->taken + size > vram_limit(d)) return beyond_limit(d, size, error);
    TRY(block_new(d, use, &b, error));
    if (size > least) {   /* so much at once may be more than there is in one piece */
        uint64_t taken = d->taken;
        if (block_open(d, b, size, use == VK_USE_DEVICE, NULL) == NOVA_OK) return NOVA_OK;
        block_close(d, b);
        b->use   = use;
        d->taken = taken;
    }
    return block_open(d, b, least, false, error);
}

static bool block_take(vk_block *b, vk_use use, uint64_t size, vk_slice *out) {
    if (b->use != use || b->size - b->used < size) return false;
    out->buffer = b->buffer;
    out->offset = b->used;
    out->size   = size;
    out->map    = b->map ? b->map + b->used : NULL;
    out->cached = b->cached;
    b->used += size;
    return true;
}

static uint64_t vk_slice_bytes(uint64_t size) { return (size + VK_SLICE_ALIGN - 1) & ~(uint64_t)(VK_SLICE_ALIGN - 1); }

static nova_result vk_take(vk_device *d, vk_use use, uint64_t size, vk_slice *out, nova_error *error) {
    uint64_t rounded = vk_slice_bytes(size);
    bool     found   = false;
    memset(out, 0, sizeof *out);
    if (rounded < size) return fail(error, NOVA_ERROR_MEMORY, "%llu bytes of device memory", (unsigned long long)size);
    for (uint32_t i = 0; i < d->n_blocks && !found; i++) found = block_take(&d->blocks[i], use, rounded, out);
    if (!found) {
        TRY(block_add(d, use, rounded, error));
        block_take(&d->blocks[d->n_blocks - 1], use, rounded, out);
    }
    if (use == VK_USE_DEVICE) d->expected -= rounded < d->expected ? rounded : d->expected;
    out->size = size;
    return NOVA_OK;
}

/* ---- Short work ---- */

static VkResult vk_submit(const vk_device *d, VkCommandBuffer commands, VkFence fence) {
    VkSubmitInfo info;
    memset(&info, 0, sizeof info);
    info.sType              = VK_STRUCTURE_TYPE_SUBMIT_INFO;
    info.commandBufferCount = 1;
    info.pCommandBuffers    = &commands;
    if (d->lock) d->lock(d->lock_user);
    VkResult r = d->api.QueueSubmit(d->queue, 1, &info, fence);
    if (d->unlock) d->unlock(d->lock_user);
    return r;
}

static nova_result vk_fence_wait(const vk_device *d, VkFence fence, bool *busy, nova_error *error) {
    if (!*busy) return NOVA_OK;
    VkResult r = d->api.WaitForFences(d->device, 1, &fence, VK_TRUE, VK_WAIT_NS);
    if (r == VK_SUCCESS || r == VK_ERROR_DEVICE_LOST) *busy = false;   /* a lost device runs nothing any more */
    VK_TRY(r, "waiting for the device");
    return NOVA_OK;
}

static nova_result vk_submit_fence(const vk_device *d, VkCommandBuffer commands, VkFence fence, bool *busy, nova_error *error) {
    TRY(vk_fence_wait(d, fence, busy, error));
    VK_TRY(d->api.ResetFences(d->device, 1, &fence), "a fence");
    VK_TRY(vk_submit(d, commands, fence), "giving work to the device");
    *busy = true;
    return NOVA_OK;
}

#define VK_WORK (VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT)   /* all that is ever recorded */

/* What comes behind sees what was written before; `host`: so does the host, once a fence has told. */
static void vk_barrier(const vk_device *d, VkCommandBuffer commands, bool host_too) {
    VkMemoryBarrier      barrier;
    VkPipelineStageFlags to = VK_WORK;
    memset(&barrier, 0, sizeof barrier);
    barrier.sType         = VK_STRUCTURE_TYPE_MEMORY_BARRIER;
    barrier.srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT;
    barrier.dstAccessMask = VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_READ_BIT | VK_ACCESS_TRANSFER_WRITE_BIT;
    if (host_too) to |= VK_PIPELINE_STAGE_HOST_BIT, barrier.dstAccessMask |= VK_ACCESS_HOST_READ_BIT;
    d->api.CmdPipelineBarrier(commands, VK_WORK, to, 0, 1, &barrier, 0, NULL, 0, NULL);
}

static nova_result commands_take(const vk_device *d, VkCommandPool from, VkCommandBuffer *out, nova_error *error) {
    VkCommandBufferAllocateInfo info;
    memset(&info, 0, sizeof info);
    info.sType              = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO;
    info.commandPool        = from;
    info.level              = VK_COMMAND_BUFFER_LEVEL_PRIMARY;
    info.commandBufferCount = 1;
    VK_TRY(d->api.AllocateCommandBuffers(d->device, &info, out), "a command buffer");
    return NOVA_OK;
}

/* `once`: it is submitted one time and then recorded anew. */
static nova_result commands_start(const vk_device *d, VkCommandBuffer commands, bool once, nova_error *error) {
    VkCommandBufferBeginInfo begin;
    memset(&begin, 0, sizeof begin);
    begin.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO;
    if (once) begin.flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT;
    VK_TRY(d->api.BeginCommandBuffer(commands, &begin), "recording");
    return NOVA_OK;
}

/* Takes what was recorded to its end, visible to the host and to what is submitted later: a fence alone makes nothing visible. */
static nova_result commands_end(const vk_device *d, VkCommandBuffer commands, nova_error *error) {
    vk_barrier(d, commands, true);
    VK_TRY(d->api.EndCommandBuffer(commands), "recording");
    return NOVA_OK;
}

/* The command buffer of the device's own pool, for once. */
static nova_result commands_begin(vk_device *d, VkCommandBuffer *commands, nova_error *error) {
    TRY(vk_fence_wait(d, d->fence, &d->busy, error));
    if (!d->once) TRY(commands_take(d, d->pool, &d->once, error));
    VK_TRY(d->api.ResetCommandPool(d->device, d->pool, 0), "a command pool");
    *commands = d->once;
    return commands_start(d, *commands, true, error);
}

static nova_result commands_run(vk_device *d, VkCommandBuffer commands, nova_error *error) {
    TRY(commands_end(d, commands, error));
    TRY(vk_submit_fence(d, commands, d->fence, &d->busy, error));
    return vk_fence_wait(d, d->fence, &d->busy, error);
}

static void record_piece(const vk_device *d, VkCommandBuffer commands, const vk_slice *from, uint64_t from_at, const vk_slice *to,
                         uint64_t to_at, uint64_t size) {
    VkBufferCopy region;
    region.srcOffset = from->offset + from_at;
    region.dstOffset = to->offset + to_at;
    region.size      = size;
    d->api.CmdCopyBuffer(commands, from->buffer, to->buffer, 1, &region);
}

static uint64_t stage_size(const vk_device *d) { return d->caps.max_alloc < VK_STAGING ? d->caps.max_alloc : VK_STAGING; }

static nova_result stage_open(vk_device *d, vk_stage *s, nova_error *error) {
    if (s->commands) return NOVA_OK;
    if (!d->stage_pool) TRY(create_command_pool(d, VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT, &d->stage_pool, error));
    if (!s->bytes.buffer) TRY(vk_take(d, VK_USE_READBACK, stage_size(d), &s->bytes, error));
    if (!s->fence) TRY(create_fence(d, &s->fence, error));
    return commands_take(d, d->stage_pool, &s->commands, error);
}

/* The next stage, its earlier copy done. */
static nova_result stage_next(vk_device *d, vk_stage **out, nova_error *error) {
    *out = &d->stages[d->next_stage++ % VK_STAGES];
    TRY(stage_open(d, *out, error));
    return vk_fence_wait(d, (*out)->fence, &(*out)->busy, error);
}

static nova_result stage_submit(vk_device *d, vk_stage *s, nova_error *error) {
    TRY(commands_end(d, s->commands, error));
    return vk_submit_fence(d, s->commands, s->fence, &s->busy, error);
}

static nova_result vk_write(vk_device *d, const vk_slice *to, uint64_t offset, const void *data, uint64_t size, nova_error *error) {
    if (to->map) {
        memcpy(to->map + offset, data, (size_t)size);
        return NOVA_OK;
    }
    for (uint64_t at = 0; at < size && !d->desc.measure; at += stage_size(d)) {
        uint64_t  n = size - at < stage_size(d) ? size - at : stage_size(d);
        vk_stage *s;
        TRY(stage_next(d, &s, error));
        memcpy(s->bytes.map, (const uint8_t *)data + at, (size_t)n);
        TRY(commands_start(d, s->commands, true, error));
        record_piece(d, s->commands, &s->bytes, 0, to, offset + at, n);
        TRY(stage_submit(d, s, error));
    }
    return NOVA_OK;
}

static nova_result vk_read(vk_device *d, const vk_slice *from, uint64_t offset, void *data, uint64_t size, nova_error *error) {
    if (from->map && from->cached) {
        memcpy(data, from->map + offset, (size_t)size);
        return NOVA_OK;
    }
    for (uint64_t at = 0; at < size; at += stage_size(d)) {
        uint64_t  n = size - at < stage_size(d) ? size - at : stage_size(d);
        vk_stage *s;
        TRY(stage_next(d, &s, error));
        TRY(commands_start(d, s->commands, true, error));
        record_piece(d, s->commands, from, offset + at, &s->bytes, 0, n);
        TRY(stage_submit(d, s, error));
        TRY(vk_fence_wait(d, s->fence, &s->busy, error));
        memcpy((uint8_t *)data + at, s->bytes.map, (size_t)n);
    }
    return NOVA_OK;
}

/* ---- The host's memory ---- */

/* A buffer over `size` bytes from `at` on, both multiples of import_align. */
static bool import_block(vk_device *d, vk_block *b, void *at, uint64_t size) {
    const VkExternalMemoryHandleTypeFlagBits kind = VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT;
    VkExternalMemoryBufferCreateInfo outside;
    VkBufferCreateInfo               info;
    VkMemoryRequirements             need;
    VkMemoryHostPointerPropertiesEXT pointer;
    VkImportMemoryHostPointerInfoEXT import;
    VkMemoryAllocateInfo             memory;
    memset(&outside, 0, sizeof outside);
    memset(&info, 0, sizeof info);
    memset(&pointer, 0, sizeof pointer);
    memset(&import, 0, sizeof import);
    memset(&memory, 0, sizeof memory);
    outside.sType       = VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO;
    outside.handleTypes = kind;
    info.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO;
    info.pNext = &outside;
    info.size  = size;
    info.usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT;
    pointer.sType = VK_STRUCTURE_TYPE_MEMORY_HOST_POINTER_PROPERTIES_EXT;
    if (d->api.CreateBuffer(d->device, &info, NULL, &b->buffer) != VK_SUCCESS) return b->buffer = VK_NULL_HANDLE, false;
    d->api.GetBufferMemoryRequirements(d->device, b->buffer, &need);
    if (need.size > size || d->api.GetMemoryHostPointerPropertiesEXT(d->device, kind, at, &pointer) != VK_SUCCESS) return false;
    import.sType        = VK_STRUCTURE_TYPE_IMPORT_MEMORY_HOST_POINTER_INFO_EXT;
    import.handleType   = kind;
    import.pHostPointer = at;
    memory.sType          = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO;
    memory.pNext          = &import;
    memory.allocationSize = size;
    while (memory.memoryTypeIndex < d->caps.memory.memoryTypeCount && !(need.memoryTypeBits & pointer.memoryTypeBits & 1u << memory.memoryTypeIndex))
        memory.memoryTypeIndex++;
    if (memory.memoryTypeIndex == d->caps.memory.memoryTypeCount) return false;
    if (d->api.AllocateMemory(d->device, &memory, NULL, &b->memory) != VK_SUCCESS) return b->memory = VK_NULL_HANDLE, false;
    b->size = b->used = size;
    return d->api.BindBufferMemory(d->device, b->buffer, b->memory, 0) == VK_SUCCESS;
}

/* Has the device a look at both ends of imported memory. */
static nova_result try_import(vk_device *d, const vk_slice *s, const void *data, bool *same, nova_error *error) {
    uint8_t  seen[16];
    uint64_t ends[2] = {0, s->size - sizeof seen};
    *same = true;
    for (int i = 0; i < 2; i++) {
        TRY(vk_read(d, s, ends[i], seen, sizeof seen, error));
        *same = *same && !memcmp(seen, (const uint8_t *)data + ends[i], sizeof seen);
    }
    return NOVA_OK;
}

/* As a slice of its own, which is planned for in any case. */
static void count_import(vk_device *d, uint64_t size) {
    uint64_t slice = vk_slice_bytes(size);
    d->imported += size, d->taken += size;
    d->expected -= slice < d->expected ? slice : d->expected;
}

static nova_result vk_import(vk_device *d, const void *data, uint64_t size, vk_slice *out, bool *done, nova_error *error) {
    uint64_t  align = d->caps.import_align, before = align ? (uintptr_t)data % align : 0, whole;
    vk_block *b;
    *done = false;
    if (!(d->caps.can & VK_CAN_IMPORT) || !d->caps.unified || d->desc.no_import || d->desc.staged) return NOVA_OK;
    if (!align || before % d->caps.align || before % 16 || size % 4 || size < 4096 || !d->api.GetMemoryHostPointerPropertiesEXT) return NOVA_OK;
    whole = (before + size + align - 1) / align * align;
    if (whole > d->caps.max_alloc || d->taken + size > vram_limit(d)) return NOVA_OK;
    if (d->desc.measure) return count_import(d, size), *done = true, NOVA_OK;
    TRY(block_new(d, VK_USE_IMPORT, &b, error));
    if (import_block(d, b, (uint8_t *)(uintptr_t)data - before, whole)) {
        memset(out, 0, sizeof *out);
        out->buffer = b->buffer, out->offset = before, out->size = size;
        count_import(d, size);
        TRY(try_import(d, out, data, done, error));
        if (*done) return NOVA_OK;
        d->imported -= size, d->taken -= size, d->expected += vk_slice_bytes(size);
    }
    block_close(d, b);
    d->n_blocks--;
    return NOVA_OK;
}

static nova_result vk_fill(vk_device *d, const vk_slice *to, uint32_t word, nova_error *error) {
    VkCommandBuffer commands = VK_NULL_HANDLE;
    if (d->desc.measure) return NOVA_OK;
    TRY(commands_begin(d, &commands, error));
    d->api.CmdFillBuffer(commands, to->buffer, to->offset, to->size & ~(uint64_t)3, word);
    return commands_run(d, commands, error);
}

#endif
