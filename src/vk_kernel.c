/* Pipelines and dispatches: see vk_kernel.h. */
#include "vk_kernel.h"

#ifndef NOVA_NO_VULKAN

/* ---- Lists ---- */

static void vk_list_init(vk_list *l, const host *h) {
    memset(l, 0, sizeof *l);
    l->h = h;
}

static void vk_list_free(vk_list *l) {
    mem_free(l->h, l->at, l->capacity * sizeof *l->at);
    vk_list_init(l, l->h);
}

static void vk_list_add(vk_list *l, const vk_dispatch *d) {
    if (l->n == l->capacity && !l->failed) {
        uint32_t     cap  = l->capacity ? 2 * l->capacity : 64;
        vk_dispatch *more = (vk_dispatch *)mem_resize(l->h, l->at, l->capacity * sizeof *more, cap * sizeof *more);
        if (more) l->at = more, l->capacity = cap;
        else l->failed = true;
    }
    if (!l->failed) l->at[l->n++] = *d;
}

static vk_dispatch vk_begin(vk_kernel kernel, uint32_t local_size) {
    vk_dispatch d;
    memset(&d, 0, sizeof d);
    d.kernel    = kernel;
    d.barrier   = true;
    d.groups[0] = d.groups[1] = d.groups[2] = 1;
    vk_spec(&d, local_size);
    return d;
}

static void vk_spec(vk_dispatch *d, uint32_t value) { d->spec[d->n_spec++] = value; }
static void vk_push(vk_dispatch *d, uint32_t value) { d->push[d->n_push++] = value; }
static void vk_push_f32(vk_dispatch *d, float value) { vk_push(d, load_u32(&value)); }
static void vk_bind(vk_dispatch *d, vk_slice slice) { d->bind[d->n_bind++] = slice; }

/* ---- Pipelines ---- */

static bool is_pipeline_of(const vk_pipeline *p, const vk_dispatch *d) {
    return p->kernel == (uint32_t)d->kernel && p->subgroup == d->subgroup && p->n_spec == d->n_spec &&
           !memcmp(p->spec, d->spec, d->n_spec * sizeof *d->spec);
}

/* Any thread: the pipeline cache is synchronised by the driver. */
static VkResult pipeline_make(const vk_device *d, const vk_dispatch *of, VkPipeline *out) {
    VkShaderModuleCreateInfo module;
    VkShaderModule           shader = VK_NULL_HANDLE;
    VkSpecializationMapEntry entries[VK_SPECS];
    VkSpecializationInfo     constants;
    VkComputePipelineCreateInfo info;
    VkPipelineShaderStageRequiredSubgroupSizeCreateInfoEXT sized;
    memset(&module, 0, sizeof module);
    memset(&info, 0, sizeof info);
    memset(&sized, 0, sizeof sized);
    module.sType    = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO;
    module.codeSize = vk_kernels[of->kernel].bytes;
    module.pCode    = vk_kernels[of->kernel].words;
    VkResult r = d->api.CreateShaderModule(d->device, &module, NULL, &shader);
    if (r != VK_SUCCESS) return r;
    for (uint32_t i = 0; i < of->n_spec; i++) {
        entries[i].constantID = i;
        entries[i].offset     = i * (uint32_t)sizeof(uint32_t);
        entries[i].size       = sizeof(uint32_t);
    }
    constants.mapEntryCount = of->n_spec;
    constants.pMapEntries   = entries;
    constants.dataSize      = of->n_spec * sizeof(uint32_t);
    constants.pData         = of->spec;
    info.sType        = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO;
    info.layout       = d->layout;
    info.stage.sType  = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO;
    info.stage.stage  = VK_SHADER_STAGE_COMPUTE_BIT;
    info.stage.module = shader;
    info.stage.pName  = "main";
    info.stage.pSpecializationInfo = &constants;
    if (of->subgroup && (d->caps.can & VK_CAN_SIZED)) {
        sized.sType                = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO_EXT;
        sized.requiredSubgroupSize = of->subgroup;
        info.stage.pNext           = &sized;
        info.stage.flags           = VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT_EXT;
    }
    if (d->statistics && (d->caps.can & VK_CAN_EXECUTABLE))
        info.flags = VK_PIPELINE_CREATE_CAPTURE_STATISTICS_BIT_KHR | VK_PIPELINE_CREATE_CAPTURE_INTERNAL_REPRESENTATIONS_BIT_KHR;
    r = d->api.CreateComputePipelines(d->device, d->cache, 1, &info, NULL, out);
    d->api.DestroyShaderModule(d->device, shader, NULL);
    return r;
}

/* Pipelines first.. of the device are to be made, each for the dispatch that asked first. */
typedef struct compile_work {
    vk_device          *d;
    const vk_dispatch **of;
    VkResult           *results;
    uint32_t            first, n;
    atomic_int32        taken;
} compile_work;

static void compile_some(void *arg) {
    compile_work *w = (compile_work *)arg;
    for (;;) {
        int32_t i = atomic_add(&w->taken, 1);
        if (i >= (int32_t)w->n) return;
        w->results[i] = pipeline_make(w->d, w->of[i], &w->d->pipelines[w->first + (uint32_t)i].handle);
    }
}

#define COMPILE_THREADS 16

/* On as many threads as there are cores; where threads cannot be had, on fewer. */
static void compile_parallel(compile_work *w) {
    thread   threads[COMPILE_THREADS];
    uint32_t started = 0, wanted = (uint32_t)size_min(size_min(cpu_cores(), w->n), COMPILE_THREADS);
    while (started + 1 < wanted && thread_start(&threads[started], compile_some, w)) started++;
    compile_some(w);
    while (started) thread_join(&threads[--started]);
}

static bool find_pipeline(const vk_device *d, vk_dispatch *of) {
    for (of->pipeline = 0; of->pipeline < d->n_pipelines; of->pipeline++)
        if (is_pipeline_of(&d->pipelines[of->pipeline], of)) return true;
    return false;
}

static nova_result pipelines_reserve(vk_device *d, uint32_t n, nova_error *error) {
    if (d->n_pipelines + n <= d->cap_pipelines) return NOVA_OK;
    uint32_t     cap  = d->n_pipelines + n + 32;
    vk_pipeline *more = (vk_pipeline *)mem_resize(&d->h, d->pipelines, d->cap_pipelines * sizeof *more, cap * sizeof *more);
    if (!more) return fail_memory(error, cap * sizeof *more, "pipelines");
    d->pipelines = more, d->cap_pipelines = cap;
    return NOVA_OK;
}

/* Enters the pipelines that are missing, without handles. */
static void enter_missing(compile_work *w, vk_dispatch *list, uint32_t n) {
    vk_device *d = w->d;
    for (uint32_t i = 0; i < n; i++) {
        if (list[i].kernel == KERNEL_COUNT || find_pipeline(d, &list[i])) continue;
        vk_pipeline *p = &d->pipelines[d->n_pipelines++];
        memset(p, 0, sizeof *p);
        p->kernel = (uint32_t)list[i].kernel, p->subgroup = list[i].subgroup, p->n_spec = list[i].n_spec;
        memcpy(p->spec, list[i].spec, sizeof p->spec);
        w->of[w->n++] = &list[i];
    }
}

/* Looks at what came out; one failure takes all of them back. */
static nova_result compile_check(compile_work *w, nova_error *error) {
    vk_device  *d      = w->d;
    nova_result result = NOVA_OK;
    for (uint32_t i = 0; result == NOVA_OK && i < w->n; i++)
        if (w->results[i] != VK_SUCCESS) result = vk_fail(error, w->results[i], vk_kernels[w->of[i]->kernel].name);
    if (result == NOVA_OK) return NOVA_OK;
    for (uint32_t i = 0; i < w->n; i++)
        if (w->results[i] == VK_SUCCESS) d->api.DestroyPipeline(d->device, d->pipelines[w->first + i].handle, NULL);
    d->n_pipelines = w->first;
    return result;
}

static uint32_t count_missing(const vk_device *d, vk_dispatch *list, uint32_t n) {
    uint32_t missing_ones = 0;
    for (uint32_t i = 0; i < n; i++) missing_ones += list[i].kernel != KERNEL_COUNT && !find_pipeline(d, &list[i]);
    return missing_ones;
}

static nova_result vk_compile(vk_device *d, vk_dispatch *list, uint32_t n, nova_error *error) {
    uint32_t missing_ones = count_missing(d, list, n);
    if (missing_ones == 0) return NOVA_OK;
    TRY(pipelines_reserve(d, missing_ones, error));
    size_t       bytes = missing_ones * (sizeof(vk_dispatch *) + sizeof(VkResult));
    uint8_t     *block = (uint8_t *)mem_zalloc(&d->h, bytes);
    compile_work w;
    if (!block) return fail_memory(error, bytes, "pipelines");
    memset(&w, 0, sizeof w);
    w.d       = d;
    w.of      = (const vk_dispatch **)(void *)block;
    w.results = (VkResult *)(void *)(block + missing_ones * sizeof(vk_dispatch *));
    w.first   = d->n_pipelines;
    enter_missing(&w, list, n);
    compile_parallel(&w);
    nova_result result = compile_check(&w, error);
    mem_free(&d->h, block, bytes);
    return result;
}

/* ---- Recording ---- */

static nova_result vk_sets_open(vk_device *d, uint32_t n, VkDescriptorPool *out, VkDescriptorSet *sets, nova_error *error) {
    VkDescriptorPoolSize        size;
    VkDescriptorPoolCreateInfo  info;
    VkDescriptorSetAllocateInfo take;
    memset(&info, 0, sizeof info);
    memset(&take, 0, sizeof take);
    size.type            = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER;
    size.descriptorCount = n * VK_BINDINGS;
    info.sType         = VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO;
    info.maxSets       = n;
    info.poolSizeCount = 1;
    info.pPoolSizes    = &size;
    VK_TRY(d->api.CreateDescriptorPool(d->device, &info, NULL, out), "a descriptor pool");
    take.sType              = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO;
    take.descriptorPool     = *out;
    take.descriptorSetCount = 1;
    take.pSetLayouts        = &d->set_layout;
    for (uint32_t i = 0; i < n; i++)
        VK_TRY(d->api.AllocateDescriptorSets(d->device, &take, &sets[i]), "descriptors");
    return NOVA_OK;
}

static void write_set(const vk_device *d, VkDescriptorSet set, const vk_dispatch *x) {
    VkDescriptorBufferInfo buffers[VK_BINDINGS];
    VkWriteDescriptorSet   write;
    memset(&write, 0, sizeof write);
    for (uint32_t i = 0; i < x->n_bind; i++) {
        buffers[i].buffer = x->bind[i].buffer;
        buffers[i].offset = x->bind[i].offset;
        buffers[i].range  = x->bind[i].size;
    }
    write.sType           = VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET;
    write.dstSet          = set;
    write.descriptorCount = x->n_bind;
    write.descriptorType  = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER;
    write.pBufferInfo     = buffers;
    if (x->n_bind) d->api.UpdateDescriptorSets(d->device, 1, &write, 0, NULL);
}

static void vk_record(vk_device *d, VkCommandBuffer commands, const vk_dispatch *list, uint32_t n, const VkDescriptorSet *sets) {
    VkPipeline last = VK_NULL_HANDLE;
    for (uint32_t i = 0; i < n; i++) {
        const vk_dispatch *x = &list[i];
        if (x->barrier && i > 0) vk_barrier(d, commands, false);
        if (x->kernel == KERNEL_COUNT) {
            record_piece(d, commands, &x->bind[0], 0, &x->bind[1], 0, x->bind[0].size);
            continue;
        }
        write_set(d, sets[i], x);
        VkPipeline pipeline = d->pipelines[x->pipeline].handle;
        if (pipeline != last) d->api.CmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline);
        last = pipeline;
        d->api.CmdBindDescriptorSets(commands, VK_PIPELINE_BIND_POINT_COMPUTE, d->layout, 0, 1, &sets[i], 0, NULL);
        if (x->n_push)
            d->api.CmdPushConstants(commands, d->layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, x->n_push * (uint32_t)sizeof(uint32_t), x->push);
        d->api.CmdDispatch(commands, x->groups[0], x->groups[1], x->groups[2]);
    }
}

static nova_result run_with_sets(vk_device *d, const vk_dispatch *list, uint32_t n, const VkDescriptorSet *sets, nova_error *error) {
    VkCommandBuffer commands = VK_NULL_HANDLE;
    TRY(commands_begin(d, &commands, error));
    vk_record(d, commands, list, n, sets);
    return commands_run(d, commands, error);
}

static nova_result vk_run_list(vk_device *d, vk_dispatch *list, uint32_t n, nova_error *error) {
    VkDescriptorPool own = VK_NULL_HANDLE;
    if (n == 0) return NOVA_OK;
    TRY(vk_compile(d, list, n, error));
    VkDescriptorSet *sets = (VkDescriptorSet *)mem_zalloc(&d->h, n * sizeof *sets);
    if (!sets) return fail_memory(error, n * sizeof *sets, "descriptors");
    nova_result result = vk_sets_open(d, n, &own, sets, error);
    if (result == NOVA_OK) result = run_with_sets(d, list, n, sets, error);
    if (d->busy) d->api.DeviceWaitIdle(d->device);
    if (own) d->api.DestroyDescriptorPool(d->device, own, NULL);
    mem_free(&d->h, sets, n * sizeof *sets);
    return result;
}

/* ---- What the driver tells ---- */

static double statistic_value(const VkPipelineExecutableStatisticKHR *s) {
    switch (s->format) {
    case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_BOOL32_KHR: return s->value.b32 ? 1.0 : 0.0;
    case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_INT64_KHR: return (double)s->value.i64;
    case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_UINT64_KHR: return (double)s->value.u64;
    default: return s->value.f64;
    }
}

static nova_result statistics_of(vk_device *d, const VkPipelineExecutableInfoKHR *info, vk_statistics *out, nova_error *error) {
    VkPipelineExecutableStatisticKHR *all;
    uint32_t                          n    = VK_MOST_STATISTICS;
    size_t                            size = n * sizeof *all;
    all = (VkPipelineExecutableStatisticKHR *)mem_zalloc(&d->h, size);
    if (!all) return fail_memory(error, size, "a pipeline's statistics");
    for (uint32_t i = 0; i < n; i++) all[i].sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_STATISTIC_KHR;
    VkResult r = d->api.GetPipelineExecutableStatisticsKHR(d->device, info, &n, all);
    for (uint32_t i = 0; (r == VK_SUCCESS || r == VK_INCOMPLETE) && i < n; i++) {
        memcpy(out->names[i], all[i].name, sizeof out->names[i]);
        out->names[i][sizeof out->names[i] - 1] = 0;
        out->name_of[i] = out->names[i];
        out->values[i]  = statistic_value(&all[i]);
        out->n          = i + 1;
    }
    mem_free(&d->h, all, size);
    return NOVA_OK;
}

static nova_result code_of(vk_device *d, const VkPipelineExecutableInfoKHR *info, vk_statistics *out, nova_error *error) {
    VkPipelineExecutableInternalRepresentationKHR all[16];
    uint32_t n = COUNT_OF(all);
    memset(all, 0, sizeof all);
    for (uint32_t i = 0; i < n; i++) all[i].sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INTERNAL_REPRESENTATION_KHR;
    VkResult r = d->api.GetPipelineExecutableInternalRepresentationsKHR(d->device, info, &n, all);
    uint32_t last = UINT32_MAX;
    for (uint32_t i = 0; (r == VK_SUCCESS || r == VK_INCOMPLETE) && i < n; i++)
        if (all[i].isText && all[i].dataSize) last = i;
    if (last == UINT32_MAX) return NOVA_OK;
    out->code_bytes = all[last].dataSize + 1;
    out->code       = (char *)mem_zalloc(&d->h, out->code_bytes);
    if (!out->code) return fail_memory(error, out->code_bytes, "a pipeline's code");
    for (uint32_t i = 0; i < n; i++) all[i].dataSize = i == last ? out->code_bytes - 1 : 0, all[i].pData = NULL;
    all[last].pData = out->code;
    d->api.GetPipelineExecutableInternalRepresentationsKHR(d->device, info, &n, all);
    return NOVA_OK;
}

static nova_result vk_statistics_get(vk_device *d, uint32_t pipeline, vk_statistics *out, nova_error *error) {
    VkPipelineExecutableInfoKHR info;
    memset(out, 0, sizeof *out);
    if (!d->statistics || !(d->caps.can & VK_CAN_EXECUTABLE) || !d->api.GetPipelineExecutableStatisticsKHR ||
        !d->api.GetPipelineExecutableInternalRepresentationsKHR)
        return NOVA_OK;
    memset(&info, 0, sizeof info);
    info.sType    = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INFO_KHR;
    info.pipeline = d->pipelines[pipeline].handle;   /* a compute pipeline has one executable, number 0 */
    TRY(statistics_of(d, &info, out, error));
    return code_of(d, &info, out, error);
}

static void vk_statistics_free(vk_device *d, vk_statistics *s) { mem_free(&d->h, s->code, s->code_bytes); }

#endif
