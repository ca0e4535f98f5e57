/* Loading Vulkan: see vk_api.h. */
#include "vk_api.h"

#ifndef NOVA_NO_VULKAN

/* ---- The library ---- */

#ifdef _WIN32
static const char *const vk_libraries[] = {"vulkan-1.dll"};
#elif defined(__APPLE__)
static const char *const vk_libraries[] = {"libvulkan.dylib", "libvulkan.1.dylib", "libMoltenVK.dylib"};
#else
static const char *const vk_libraries[] = {"libvulkan.so.1", "libvulkan.so"};
#endif

#define VK_FILTERED(name, function) ((PFN_vk##name)NOVA_VK_FILTER("vk" #name, function))

static nova_result missing(nova_error *error, const char *name) {
    return fail(error, NOVA_ERROR_DEVICE, "Vulkan here has no vk%s", name);
}

static nova_result vk_api_open(vk_api *api, PFN_vkGetInstanceProcAddr given, nova_error *error) {
    memset(api, 0, sizeof *api);
    for (size_t i = 0; !given && !api->library && i < COUNT_OF(vk_libraries); i++) api->library = library_open(vk_libraries[i]);
    if (!given && !api->library) return fail(error, NOVA_ERROR_DEVICE, "no Vulkan library (%s) is installed", vk_libraries[0]);
    api->GetInstanceProcAddr = given ? given : (PFN_vkGetInstanceProcAddr)library_function(api->library, "vkGetInstanceProcAddr");
    if (!api->GetInstanceProcAddr) {
        vk_api_close(api);
        return missing(error, "GetInstanceProcAddr");
    }
#define LOAD(name)                                                                                   \
    api->name = VK_FILTERED(name, api->GetInstanceProcAddr(VK_NULL_HANDLE, "vk" #name));             \
    if (!api->name) {                                                                                \
        vk_api_close(api);                                                                           \
        return missing(error, #name);                                                                \
    }
    VK_GLOBAL_FUNCTIONS(LOAD)
#undef LOAD
    return NOVA_OK;
}

static void vk_api_close(vk_api *api) {
    if (api->library) library_close(api->library);
    memset(api, 0, sizeof *api);
}

static nova_result vk_api_instance(vk_api *api, VkInstance instance, nova_error *error) {
#define LOAD_OPTIONAL(name) api->name = VK_FILTERED(name, api->GetInstanceProcAddr(instance, "vk" #name));
#define LOAD(name)                                                                                   \
    LOAD_OPTIONAL(name)                                                                              \
    if (!api->name) return missing(error, #name);
    VK_INSTANCE_FUNCTIONS(LOAD)
    VK_INSTANCE_FUNCTIONS_1_1(LOAD)
    VK_INSTANCE_FUNCTIONS_OPTIONAL(LOAD_OPTIONAL)
#undef LOAD
#undef LOAD_OPTIONAL
    return NOVA_OK;
}

static nova_result vk_api_device(vk_api *api, VkDevice device, nova_error *error) {
#define LOAD_OPTIONAL(name) api->name = VK_FILTERED(name, api->GetDeviceProcAddr(device, "vk" #name));
#define LOAD(name)                                                                                   \
    LOAD_OPTIONAL(name)                                                                              \
    if (!api->name) return missing(error, #name);
    VK_DEVICE_FUNCTIONS(LOAD)
    VK_DEVICE_FUNCTIONS_OPTIONAL(LOAD_OPTIONAL)
#undef LOAD
#undef LOAD_OPTIONAL
    return NOVA_OK;
}

/* ---- Results ---- */

static const struct { VkResult result; nova_result code; const char *name; } vk_results[] = {
    {VK_NOT_READY, NOVA_ERROR_DEVICE, "VK_NOT_READY"},
    {VK_TIMEOUT, NOVA_ERROR_DEVICE, "VK_TIMEOUT"},
    {VK_INCOMPLETE, NOVA_ERROR_DEVICE, "VK_INCOMPLETE"},
    {VK_ERROR_OUT_OF_HOST_MEMORY, NOVA_ERROR_MEMORY, "VK_ERROR_OUT_OF_HOST_MEMORY"},
    {VK_ERROR_OUT_OF_DEVICE_MEMORY, NOVA_ERROR_MEMORY, "VK_ERROR_OUT_OF_DEVICE_MEMORY"},
    {VK_ERROR_INITIALIZATION_FAILED, NOVA_ERROR_DEVICE, "VK_ERROR_INITIALIZATION_FAILED"},
    {VK_ERROR_DEVICE_LOST, NOVA_ERROR_DEVICE, "VK_ERROR_DEVICE_LOST"},
    {VK_ERROR_MEMORY_MAP_FAILED, NOVA_ERROR_DEVICE, "VK_ERROR_MEMORY_MAP_FAILED"},
    {VK_ERROR_LAYER_NOT_PRESENT, NOVA_ERROR_DEVICE, "VK_ERROR_LAYER_NOT_PRESENT"},
    {VK_ERROR_EXTENSION_NOT_PRESENT, NOVA_ERROR_DEVICE, "VK_ERROR_EXTENSION_NOT_PRESENT"},
    {VK_ERROR_FEATURE_NOT_PRESENT, NOVA_ERROR_DEVICE, "VK_ERROR_FEATURE_NOT_PRESENT"},
    {VK_ERROR_INCOMPATIBLE_DRIVER, NOVA_ERROR_DEVICE, "VK_ERROR_INCOMPATIBLE_DRIVER"},
    {VK_ERROR_TOO_MANY_OBJECTS, NOVA_ERROR_DEVICE, "VK_ERROR_TOO_MANY_OBJECTS"},
    {VK_ERROR_FRAGMENTED_POOL, NOVA_ERROR_MEMORY, "VK_ERROR_FRAGMENTED_POOL"},
    {VK_ERROR_OUT_OF_POOL_MEMORY, NOVA_ERROR_MEMORY, "VK_ERROR_OUT_OF_POOL_MEMORY"},
    {VK_ERROR_UNKNOWN, NOVA_ERROR_DEVICE, "VK_ERROR_UNKNOWN"},
};

static nova_result vk_fail(nova_error *error, VkResult result, const char *what) {
    for (size_t i = 0; i < COUNT_OF(vk_results); i++)
        if (vk_results[i].result == result) return fail(error, vk_results[i].code, "%s: %s", what, vk_results[i].name);
    return fail(error, NOVA_ERROR_DEVICE, "%s: Vulkan's result %d", what, (int)result);
}

#endif
