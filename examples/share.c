/* share - a Vulkan program that draws pictures while nova writes text, both on one device and one queue.
 *
 *     share MODEL.gguf [FOLDER]      some pictures go to FOLDER as PPM files
 *
 * What a host has to do to share its device with nova stands under "The device" (which features and extensions it turns
 * on, and that it remembers them), "Both" (struct nova_vulkan), and in draw(): each use of the queue is under one lock,
 * also nova's. Nothing else is shared: nova takes its own memory and command buffers on the device.
 *
 * Build: cc -O2 -o share examples/share.c nova.c -lm -lpthread -ldl -lvulkan       (or: make examples)
 * MIT license, see LICENSE.
 */
#if !defined(_WIN32) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE   /* clock_gettime in strict C11 */
#endif
#define _CRT_SECURE_NO_WARNINGS
#include "../nova.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifdef NOVA_NO_VULKAN
int main(void) {
    fprintf(stderr, "share: built without Vulkan\n");
    return 1;
}
#else

#include "share_spv.h"
#include <vulkan/vulkan.h>

/* ---------------------------------------------------------------------------------------------------------------
 * The system: a thread, a lock, a clock
 * ------------------------------------------------------------------------------------------------------------ */

#ifdef _WIN32
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
typedef HANDLE           thread_handle;
typedef CRITICAL_SECTION lock_object;
#define THREAD_FUNCTION(name, argument) static DWORD WINAPI name(void *argument)
#define THREAD_END return 0
static void lock_open(lock_object *l) { InitializeCriticalSection(l); }
static void lock_take(lock_object *l) { EnterCriticalSection(l); }
static void lock_give(lock_object *l) { LeaveCriticalSection(l); }
static bool thread_open(thread_handle *t, LPTHREAD_START_ROUTINE fn, void *arg) {
    return (*t = CreateThread(NULL, 0, fn, arg, 0, NULL)) != NULL;
}
static void thread_close(thread_handle t) {
    WaitForSingleObject(t, INFINITE);
    CloseHandle(t);
}
static void sleep_ms(double ms) { Sleep((DWORD)ms); }
static double now_ms(void) {
    LARGE_INTEGER count, frequency;
    QueryPerformanceCounter(&count);
    QueryPerformanceFrequency(&frequency);
    return (double)count.QuadPart * 1e3 / (double)frequency.QuadPart;
}
#else
#include <pthread.h>
typedef pthread_t       thread_handle;
typedef pthread_mutex_t lock_object;
#define THREAD_FUNCTION(name, argument) static void *name(void *argument)
#define THREAD_END return NULL
static void lock_open(lock_object *l) { pthread_mutex_init(l, NULL); }
static void lock_take(lock_object *l) { pthread_mutex_lock(l); }
static void lock_give(lock_object *l) { pthread_mutex_unlock(l); }
static bool thread_open(thread_handle *t, void *(*fn)(void *), void *arg) {
    return pthread_create(t, NULL, fn, arg) == 0;
}
static void thread_close(thread_handle t) { pthread_join(t, NULL); }
static void sleep_ms(double ms) {
    struct timespec t;
    t.tv_sec  = (time_t)(ms / 1e3);
    t.tv_nsec = (long)((ms - (double)t.tv_sec * 1e3) * 1e6);
    nanosleep(&t, NULL);
}
static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}
#endif

/* One line, and the end: this is a small program. */
static void fail(const char *what, const char *why) {
    fprintf(stderr, "share: %s: %s\n", what, why);
    exit(1);
}

static void check(VkResult result, const char *what) {
    char number[32];
    snprintf(number, sizeof number, "VkResult %d", (int)result);
    if (result != VK_SUCCESS) fail(what, number);
}

/* Declares a zeroed struct of Vulkan's. */
#define ZEROED(type, name, kind) \
    type name;                   \
    memset(&name, 0, sizeof name); \
    name.sType = VK_STRUCTURE_TYPE_##kind

/* ---------------------------------------------------------------------------------------------------------------
 * The device
 * ------------------------------------------------------------------------------------------------------------ */

typedef struct gpu {
    VkInstance       instance;
    VkPhysicalDevice physical;
    VkDevice         device;
    VkQueue          queue;
    uint32_t         family;
    lock_object      queue_lock;   /* around every use of the queue */

    /* What was turned on: nova is told, for it cannot ask. */
    VkPhysicalDeviceFeatures2        features;
    VkPhysicalDeviceVulkan11Features features11;
    VkPhysicalDeviceVulkan12Features features12;
    VkPhysicalDeviceVulkan13Features features13;
#ifdef VK_KHR_cooperative_matrix
    VkPhysicalDeviceCooperativeMatrixFeaturesKHR matrix;
#endif
    const char      *extensions[4];
    uint32_t         n_extensions;
} gpu;

static void open_instance(gpu *g) {
    uint32_t version = 0;
    ZEROED(VkApplicationInfo, app, APPLICATION_INFO);
    ZEROED(VkInstanceCreateInfo, info, INSTANCE_CREATE_INFO);
    check(vkEnumerateInstanceVersion(&version), "Vulkan's version");
    app.apiVersion        = version < VK_API_VERSION_1_3 ? version : VK_API_VERSION_1_3;
    info.pApplicationInfo = &app;
    if (version < VK_API_VERSION_1_1) fail("Vulkan", "this one is 1.0, and 1.1 is the least");
    if (vkCreateInstance(&info, NULL, &g->instance) != VK_SUCCESS) fail("Vulkan", "no driver is installed here");
}

/* A GPU if there is one, else a driver that computes on the CPU; and of its queues one that computes. */
static void choose_device(gpu *g) {
    VkPhysicalDevice           all[16];
    VkPhysicalDeviceProperties props;
    VkQueueFamilyProperties    families[32];
    uint32_t                   n = 16, n_families = 32;
    VkResult                   result = vkEnumeratePhysicalDevices(g->instance, &n, all);
    if ((result != VK_SUCCESS && result != VK_INCOMPLETE) || n == 0) fail("Vulkan", "it has no device here");
    g->physical = all[0];
    for (uint32_t i = n; i-- > 0;) {
        vkGetPhysicalDeviceProperties(all[i], &props);
        if (props.deviceType != VK_PHYSICAL_DEVICE_TYPE_CPU) g->physical = all[i];
    }
    vkGetPhysicalDeviceProperties(g->physical, &props);
    if (props.apiVersion < VK_API_VERSION_1_1) fail(props.deviceName, "it has Vulkan 1.0, and 1.1 is the least");
    fprintf(stderr, "device         %s\n", props.deviceName);
    vkGetPhysicalDeviceQueueFamilyProperties(g->physical, &n_families, families);
    while (g->family < n_families && !(families[g->family].queueFlags & VK_QUEUE_COMPUTE_BIT)) g->family++;
    if (g->family == n_families) fail(props.deviceName, "none of its queues computes");
}

/* Names an extension if the device has it. */
static bool want_extension(gpu *g, const char *name) {
    static VkExtensionProperties all[512];
    uint32_t                     n = 512;
    VkResult                     result = vkEnumerateDeviceExtensionProperties(g->physical, NULL, &n, all);
    if (result != VK_SUCCESS && result != VK_INCOMPLETE) return false;
    for (uint32_t i = 0; i < n; i++)
        if (!strcmp(all[i].extensionName, name)) {
            g->extensions[g->n_extensions++] = name;
            return true;
        }
    return false;
}

static void append(VkPhysicalDeviceFeatures2 *to, void *next, VkStructureType type) {
    VkBaseOutStructure *last = (VkBaseOutStructure *)to, *s = (VkBaseOutStructure *)next;
    while (last->pNext) last = last->pNext;
    last->pNext = s;
    s->sType    = type;
}

/* The chain of features, empty where the device is too old: nova then does with what every device has. */
static void chain_features(gpu *g) {
    VkPhysicalDeviceProperties props;
    vkGetPhysicalDeviceProperties(g->physical, &props);
    g->features.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2;
    if (props.apiVersion < VK_API_VERSION_1_3) return;
    append(&g->features, &g->features11, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES);
    append(&g->features, &g->features12, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES);
    append(&g->features, &g->features13, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_FEATURES);
#ifdef VK_KHR_cooperative_matrix
    if (want_extension(g, VK_KHR_COOPERATIVE_MATRIX_EXTENSION_NAME))
        append(&g->features, &g->matrix, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR);
#endif
}

/* Keeps of a struct that was asked for only the members that nova can use; the program's own would be kept too. */
#define KEEP(chained, type, keep)                           \
    do {                                                    \
        type asked = chained;                               \
        memset(&chained, 0, sizeof chained);                \
        chained.sType = asked.sType, chained.pNext = asked.pNext; \
        keep                                                \
    } while (0)
#define TAKE(chained, member) chained.member = asked.member;

static void choose_features(gpu *g) {
    chain_features(g);
    vkGetPhysicalDeviceFeatures2(g->physical, &g->features);
    memset(&g->features.features, 0, sizeof g->features.features);
    KEEP(g->features11, VkPhysicalDeviceVulkan11Features, TAKE(g->features11, storageBuffer16BitAccess));
    KEEP(g->features12, VkPhysicalDeviceVulkan12Features,
         TAKE(g->features12, storageBuffer8BitAccess) TAKE(g->features12, shaderFloat16) TAKE(g->features12, shaderInt8)
         TAKE(g->features12, vulkanMemoryModel) TAKE(g->features12, vulkanMemoryModelDeviceScope));
    KEEP(g->features13, VkPhysicalDeviceVulkan13Features,
         TAKE(g->features13, shaderIntegerDotProduct) TAKE(g->features13, subgroupSizeControl)
         TAKE(g->features13, computeFullSubgroups));
#ifdef VK_KHR_cooperative_matrix
    KEEP(g->matrix, VkPhysicalDeviceCooperativeMatrixFeaturesKHR, TAKE(g->matrix, cooperativeMatrix));
#endif
    want_extension(g, "VK_EXT_memory_budget");       /* nova then takes no more memory than is free */
    want_extension(g, "VK_KHR_portability_subset");  /* must be on where it is there */
}

static void open_device(gpu *g) {
    const float priority = 1;
    ZEROED(VkDeviceQueueCreateInfo, queue, DEVICE_QUEUE_CREATE_INFO);
    ZEROED(VkDeviceCreateInfo, info, DEVICE_CREATE_INFO);
    queue.queueFamilyIndex       = g->family;
    queue.queueCount             = 1;
    queue.pQueuePriorities       = &priority;
    info.pNext                   = &g->features;
    info.queueCreateInfoCount    = 1;
    info.pQueueCreateInfos       = &queue;
    info.enabledExtensionCount   = g->n_extensions;
    info.ppEnabledExtensionNames = g->extensions;
    check(vkCreateDevice(g->physical, &info, NULL, &g->device), "opening the device");
    vkGetDeviceQueue(g->device, g->family, 0, &g->queue);
    lock_open(&g->queue_lock);
}

static void close_device(gpu *g) {
    vkDestroyDevice(g->device, NULL);
    vkDestroyInstance(g->instance, NULL);
}

/* ---------------------------------------------------------------------------------------------------------------
 * The pictures: a compute shader that writes a buffer which the host can read
 * ------------------------------------------------------------------------------------------------------------ */

#define WIDTH  640u
#define HEIGHT 360u

typedef struct painter {
    gpu                  *g;
    VkBuffer              pixels;
    VkDeviceMemory        memory;
    const uint8_t        *map;
    VkDescriptorSetLayout set_layout;
    VkDescriptorPool      sets;
    VkDescriptorSet       set;
    VkPipelineLayout      layout;
    VkPipeline            pipeline;
    VkCommandPool         pool;
    VkCommandBuffer       commands;
    VkFence               fence;
} painter;

typedef struct push_constants {
    uint32_t width, height;
    float    seconds;
} push_constants;

static uint32_t host_memory_type(const gpu *g, uint32_t allowed) {
    const VkMemoryPropertyFlags wanted = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    VkPhysicalDeviceMemoryProperties memory;
    vkGetPhysicalDeviceMemoryProperties(g->physical, &memory);
    for (uint32_t i = 0; i < memory.memoryTypeCount; i++)
        if ((allowed >> i & 1) && (memory.memoryTypes[i].propertyFlags & wanted) == wanted) return i;
    fail("the device", "it has no memory that the host sees");
    return 0;
}

static void make_pixels(painter *p) {
    VkDevice             d = p->g->device;
    VkMemoryRequirements need;
    void                *map = NULL;
    ZEROED(VkBufferCreateInfo, info, BUFFER_CREATE_INFO);
    ZEROED(VkMemoryAllocateInfo, take, MEMORY_ALLOCATE_INFO);
    info.size  = WIDTH * HEIGHT * 4;
    info.usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT;
    check(vkCreateBuffer(d, &info, NULL, &p->pixels), "a buffer");
    vkGetBufferMemoryRequirements(d, p->pixels, &need);
    take.allocationSize  = need.size;
    take.memoryTypeIndex = host_memory_type(p->g, need.memoryTypeBits);
    check(vkAllocateMemory(d, &take, NULL, &p->memory), "memory");
    check(vkBindBufferMemory(d, p->pixels, p->memory, 0), "memory");
    check(vkMapMemory(d, p->memory, 0, VK_WHOLE_SIZE, 0, &map), "memory");
    p->map = (const uint8_t *)map;
}

static void make_set(painter *p) {
    VkDevice                     d = p->g->device;
    VkDescriptorSetLayoutBinding binding;
    VkDescriptorPoolSize         size;
    VkDescriptorBufferInfo       buffer;
    ZEROED(VkDescriptorSetLayoutCreateInfo, layout, DESCRIPTOR_SET_LAYOUT_CREATE_INFO);
    ZEROED(VkDescriptorPoolCreateInfo, pool, DESCRIPTOR_POOL_CREATE_INFO);
    ZEROED(VkDescriptorSetAllocateInfo, take, DESCRIPTOR_SET_ALLOCATE_INFO);
    ZEROED(VkWriteDescriptorSet, write, WRITE_DESCRIPTOR_SET);
    memset(&binding, 0, sizeof binding);
    binding.descriptorType  = size.type = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER;
    binding.descriptorCount = size.descriptorCount = 1;
    binding.stageFlags      = VK_SHADER_STAGE_COMPUTE_BIT;
    layout.bindingCount     = 1;
    layout.pBindings        = &binding;
    check(vkCreateDescriptorSetLayout(d, &layout, NULL, &p->set_layout), "a descriptor's layout");
    pool.maxSets = pool.poolSizeCount = 1;
    pool.pPoolSizes = &size;
    check(vkCreateDescriptorPool(d, &pool, NULL, &p->sets), "a pool of descriptors");
    take.descriptorPool     = p->sets;
    take.descriptorSetCount = 1;
    take.pSetLayouts        = &p->set_layout;
    check(vkAllocateDescriptorSets(d, &take, &p->set), "a descriptor");
    buffer.buffer = p->pixels, buffer.offset = 0, buffer.range = VK_WHOLE_SIZE;
    write.dstSet          = p->set;
    write.descriptorCount = 1;
    write.descriptorType  = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER;
    write.pBufferInfo     = &buffer;
    vkUpdateDescriptorSets(d, 1, &write, 0, NULL);
}

static void make_pipeline(painter *p) {
    VkDevice            d = p->g->device;
    VkShaderModule      shader;
    VkPushConstantRange push;
    ZEROED(VkPipelineLayoutCreateInfo, layout, PIPELINE_LAYOUT_CREATE_INFO);
    ZEROED(VkShaderModuleCreateInfo, module, SHADER_MODULE_CREATE_INFO);
    ZEROED(VkComputePipelineCreateInfo, info, COMPUTE_PIPELINE_CREATE_INFO);
    push.stageFlags = VK_SHADER_STAGE_COMPUTE_BIT, push.offset = 0, push.size = sizeof(push_constants);
    layout.setLayoutCount = layout.pushConstantRangeCount = 1;
    layout.pSetLayouts         = &p->set_layout;
    layout.pPushConstantRanges = &push;
    check(vkCreatePipelineLayout(d, &layout, NULL, &p->layout), "a pipeline's layout");
    module.codeSize = sizeof share_spv;
    module.pCode    = share_spv;
    check(vkCreateShaderModule(d, &module, NULL, &shader), "the shader");
    info.stage.sType  = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO;
    info.stage.stage  = VK_SHADER_STAGE_COMPUTE_BIT;
    info.stage.module = shader;
    info.stage.pName  = "main";
    info.layout       = p->layout;
    check(vkCreateComputePipelines(d, VK_NULL_HANDLE, 1, &info, NULL, &p->pipeline), "the pipeline");
    vkDestroyShaderModule(d, shader, NULL);
}

static void make_commands(painter *p) {
    VkDevice d = p->g->device;
    ZEROED(VkCommandPoolCreateInfo, pool, COMMAND_POOL_CREATE_INFO);
    ZEROED(VkCommandBufferAllocateInfo, take, COMMAND_BUFFER_ALLOCATE_INFO);
    ZEROED(VkFenceCreateInfo, fence, FENCE_CREATE_INFO);
    pool.queueFamilyIndex = p->g->family;
    check(vkCreateCommandPool(d, &pool, NULL, &p->pool), "a command pool");
    take.commandPool        = p->pool;
    take.level              = VK_COMMAND_BUFFER_LEVEL_PRIMARY;
    take.commandBufferCount = 1;
    check(vkAllocateCommandBuffers(d, &take, &p->commands), "a command buffer");
    check(vkCreateFence(d, &fence, NULL, &p->fence), "a fence");
}

static void painter_open(painter *p, gpu *g) {
    memset(p, 0, sizeof *p);
    p->g = g;
    make_pixels(p);
    make_set(p);
    make_pipeline(p);
    make_commands(p);
}

static void painter_close(painter *p) {
    VkDevice d = p->g->device;
    vkDestroyFence(d, p->fence, NULL);
    vkDestroyCommandPool(d, p->pool, NULL);
    vkDestroyPipeline(d, p->pipeline, NULL);
    vkDestroyPipelineLayout(d, p->layout, NULL);
    vkDestroyDescriptorPool(d, p->sets, NULL);
    vkDestroyDescriptorSetLayout(d, p->set_layout, NULL);
    vkDestroyBuffer(d, p->pixels, NULL);
    vkFreeMemory(d, p->memory, NULL);
}

static void record(painter *p, float seconds) {
    push_constants push;
    ZEROED(VkCommandBufferBeginInfo, begin, COMMAND_BUFFER_BEGIN_INFO);
    ZEROED(VkMemoryBarrier, barrier, MEMORY_BARRIER);
    push.width = WIDTH, push.height = HEIGHT, push.seconds = seconds;
    begin.flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT;
    check(vkResetCommandPool(p->g->device, p->pool, 0), "recording");
    check(vkBeginCommandBuffer(p->commands, &begin), "recording");
    vkCmdBindPipeline(p->commands, VK_PIPELINE_BIND_POINT_COMPUTE, p->pipeline);
    vkCmdBindDescriptorSets(p->commands, VK_PIPELINE_BIND_POINT_COMPUTE, p->layout, 0, 1, &p->set, 0, NULL);
    vkCmdPushConstants(p->commands, p->layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof push, &push);
    vkCmdDispatch(p->commands, (WIDTH + 7) / 8, (HEIGHT + 7) / 8, 1);
    barrier.srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT;
    barrier.dstAccessMask = VK_ACCESS_HOST_READ_BIT;
    vkCmdPipelineBarrier(p->commands, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_PIPELINE_STAGE_HOST_BIT, 0, 1, &barrier,
                         0, NULL, 0, NULL);
    check(vkEndCommandBuffer(p->commands), "recording");
}

/* A picture; gives the milliseconds until it was there. */
static double draw(painter *p, float seconds) {
    gpu   *g     = p->g;
    double began = now_ms();
    ZEROED(VkSubmitInfo, submit, SUBMIT_INFO);
    record(p, seconds);
    submit.commandBufferCount = 1;
    submit.pCommandBuffers    = &p->commands;
    check(vkResetFences(g->device, 1, &p->fence), "a fence");
    lock_take(&g->queue_lock);   /* while submitting, not while waiting: nova's work goes on */
    VkResult result = vkQueueSubmit(g->queue, 1, &submit, p->fence);
    lock_give(&g->queue_lock);
    check(result, "giving work to the device");
    check(vkWaitForFences(g->device, 1, &p->fence, VK_TRUE, UINT64_MAX), "waiting for the device");
    return now_ms() - began;
}

static void save(const painter *p, const char *folder, uint32_t number) {
    char path[1024];
    snprintf(path, sizeof path, "%s/share-%u.ppm", folder, number);
    FILE *f = fopen(path, "wb");
    if (!f) fail(path, "it cannot be written");
    fprintf(f, "P6\n%u %u\n255\n", WIDTH, HEIGHT);
    for (uint32_t i = 0; i < WIDTH * HEIGHT; i++) fwrite(p->map + 4 * i, 1, 3, f);
    if (fclose(f) != 0) fail(path, "it cannot be written");
}

/* ---------------------------------------------------------------------------------------------------------------
 * Both: pictures on a thread of their own, sixty a second, text on this one
 * ------------------------------------------------------------------------------------------------------------ */

typedef enum phase { ALONE, LOADING, WRITING, PHASES, END = PHASES } phase;

#define MOST_FRAMES 4096
#define FRAME_MS    (1000.0 / 60)
#define SAVE_EVERY  20
#define SAVE_MOST   4

typedef struct show {
    gpu         g;
    painter     p;
    const char *folder;               /* NULL: no pictures are kept */
    lock_object lock;                 /* for what follows */
    phase       now;
    double      ms[PHASES][MOST_FRAMES];   /* that each picture took */
    uint32_t    n[PHASES];
} show;

static phase show_phase(show *s) {
    lock_take(&s->lock);
    phase now = s->now;
    lock_give(&s->lock);
    return now;
}

static void show_set_phase(show *s, phase now) {
    lock_take(&s->lock);
    s->now = now;
    lock_give(&s->lock);
}

THREAD_FUNCTION(show_pictures, argument) {
    show    *s     = (show *)argument;
    double   began = now_ms(), next = began;
    uint32_t saved = 0;
    for (phase now = show_phase(s); now != END; now = show_phase(s)) {
        double ms = draw(&s->p, (float)((now_ms() - began) * 1e-3));
        if (s->n[now] < MOST_FRAMES) s->ms[now][s->n[now]++] = ms;
        bool keep = s->folder && now == WRITING && s->n[now] % SAVE_EVERY == 1;
        if (keep && saved < SAVE_MOST) save(&s->p, s->folder, saved++);
        next += FRAME_MS;
        if (next > now_ms()) sleep_ms(next - now_ms());
        else next = now_ms();
    }
    THREAD_END;
}

/* nova's callbacks. */
static void lock_queue(void *user) { lock_take(&((gpu *)user)->queue_lock); }
static void unlock_queue(void *user) { lock_give(&((gpu *)user)->queue_lock); }

static nova_engine *open_engine(gpu *g, nova_model *model, nova_error *error) {
    nova_vulkan      mine;
    nova_engine_desc desc;
    PFN_vkGetInstanceProcAddr get = vkGetInstanceProcAddr;
    memset(&mine, 0, sizeof mine);
    memset(&desc, 0, sizeof desc);
    memcpy(&mine.get_instance_proc_addr, &get, sizeof get);   /* a function as a pointer to void */
    mine.instance        = g->instance;
    mine.physical_device = g->physical;
    mine.device          = g->device;
    mine.queue           = g->queue;
    mine.queue_family    = g->family;
    mine.features        = &g->features;
    mine.extensions      = g->extensions;
    mine.n_extensions    = g->n_extensions;
    mine.lock            = lock_queue;
    mine.unlock          = unlock_queue;
    mine.lock_user       = g;
    desc.vulkan = &mine;   /* read while opening alone */
    desc.device = "gpu";   /* also where the device is a CPU */
    return nova_engine_open(model, &desc, error);
}

/* Answers; gives tokens a second of the writing. */
static double write_answer(const nova_model *model, nova_session *session, bool aloud, nova_error *error) {
    nova_message    question;
    nova_chat       chat;
    nova_token      token;
    nova_model_info info;
    memset(&question, 0, sizeof question);
    memset(&chat, 0, sizeof chat);
    nova_model_get_info(model, &info);
    question.role    = "user";
    question.content = "Why is the sky blue? Answer in two sentences.";
    chat.messages    = &question;
    chat.n_messages  = 1;
    if (!info.has_chat_template) chat.template_text = "{{ messages[0].content }}";
    nova_result result = nova_session_chat(session, &chat, error);
    double      began  = now_ms();
    uint32_t    n      = 0;
    while (result == NOVA_OK && n < 64) {
        result = nova_session_next(session, &token, error);
        if (result >= 0) n++;
        if (result >= 0 && aloud) printf("%s", token.text), fflush(stdout);
    }
    if (result < 0) fail("nova", error->message);
    if (aloud) printf("\n");
    return n * 1e3 / (now_ms() - began);
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void tell_frames(show *s, phase of, const char *what) {
    uint32_t n  = s->n[of];
    double  *ms = s->ms[of];
    if (n == 0) return;
    qsort(ms, n, sizeof *ms, compare);
    fprintf(stderr, "%-14s %4u pictures, each %7.2f ms (median), %7.2f ms (worst)\n", what, n, ms[n / 2], ms[n - 1]);
}

static void run(show *s, const char *path) {
    thread_handle     thread;
    nova_model_desc   file;
    nova_session_desc how;
    nova_error        error;
    nova_engine_info  info;
    memset(&file, 0, sizeof file);
    memset(&how, 0, sizeof how);
    file.path      = path;
    how.ignore_end = true;
    if (!thread_open(&thread, show_pictures, s)) fail("threads", "none can be started");
    sleep_ms(500);
    show_set_phase(s, LOADING);
    nova_model   *model   = nova_model_open(&file, &error);
    nova_engine  *engine  = open_engine(&s->g, model, &error);
    nova_session *session = nova_session_open(engine, &how, &error);
    if (!session) fail("nova", error.message);
    show_set_phase(s, WRITING);
    double beside = write_answer(model, session, true, &error);
    show_set_phase(s, END);
    thread_close(thread);
    nova_session_reset(session);
    double alone = write_answer(model, session, false, &error);
    nova_engine_get_info(engine, &info);
    fprintf(stderr, "nova           %.1f tokens/s beside the pictures, %.1f alone; %u of %u layers on the GPU\n",
            beside, alone, info.gpu_layers, info.n_layers);
    nova_session_close(session);
    nova_engine_close(engine);
    nova_model_close(model);
}

int main(int argc, char **argv) {
    show *s = (show *)calloc(1, sizeof *s);
    if (!s) return 1;
    if (argc < 2 || argc > 3) {
        fprintf(stderr, "usage: share MODEL.gguf [FOLDER]\n");
        return 2;
    }
    s->folder = argc > 2 ? argv[2] : NULL;
    lock_open(&s->lock);
    open_instance(&s->g);
    choose_device(&s->g);
    choose_features(&s->g);
    open_device(&s->g);
    painter_open(&s->p, &s->g);
    run(s, argv[1]);
    tell_frames(s, ALONE, "before nova");
    tell_frames(s, LOADING, "while loading");
    tell_frames(s, WRITING, "while writing");
    painter_close(&s->p);
    close_device(&s->g);
    free(s);
    return 0;
}
#endif
