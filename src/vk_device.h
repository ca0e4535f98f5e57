/* A Vulkan device: found, opened, and its memory. */
#ifndef NOVA_VK_DEVICE_H
#define NOVA_VK_DEVICE_H

#include "vk_api.h"

#ifndef NOVA_NO_VULKAN

/* One multiplication that the device's matrix units do: [m][k] by [k][n], in one subgroup. */
typedef struct vk_matrix {
    uint32_t           m, n, k;
    VkComponentTypeKHR a, b, c;   /* c: of the sum */
} vk_matrix;

#define VK_MATRICES 32

/* Abilities, each used only where the device has it and `without` does not name it. */
enum {
    VK_CAN_SUBGROUP = 1,      /* subgroup arithmetic, basic, shuffle in compute */
    VK_CAN_F16      = 2,      /* f16 arithmetic */
    VK_CAN_INT8     = 4,
    VK_CAN_DOT      = 8,      /* integer dot product (4x8 packed) */
    VK_CAN_MATRIX   = 16,     /* KHR cooperative matrix */
    VK_CAN_SIZED    = 32,     /* a pipeline may choose its subgroup size */
    VK_CAN_STORAGE16 = 64,
    VK_CAN_EXECUTABLE = 128,  /* pipeline executable properties */
    VK_CAN_BUDGET   = 256,
    VK_CAN_IMPORT   = 512,    /* host memory imported */
    VK_CAN_STORAGE8 = 1024
};

typedef struct vk_caps {
    char      name[VK_MAX_PHYSICAL_DEVICE_NAME_SIZE];
    VkPhysicalDeviceType type;
    uint32_t  vendor, device, api, driver_version;
    uint32_t  can;                     /* VK_CAN_... */
    uint32_t  dot_fast;                /* signed 4x8 packed dot products are one instruction */
    uint32_t  subgroup, subgroup_min, subgroup_max;
    uint32_t  max_workgroup;           /* invocations, also along x */
    uint32_t  max_shared;              /* bytes */
    uint64_t  max_range, max_alloc;    /* of a binding, of an allocation */
    uint64_t  align;                   /* of a binding's offset */
    uint32_t  max_bindings;            /* storage buffers of a kernel */
    float     timestamp_ns;            /* 0: no timestamps */
    uint32_t  n_matrices;
    vk_matrix matrices[VK_MATRICES];
    uint64_t  heap_bytes, heap_free;   /* of the device-local heap; free by the driver's budget, else = bytes */
    bool      unified;                 /* all device memory is host-visible */
    uint64_t  import_align;            /* of host memory that is imported and its size */
    VkPhysicalDeviceMemoryProperties memory;
} vk_caps;

/* A piece of a buffer. */
typedef struct vk_slice {
    VkBuffer buffer;
    uint64_t offset, size;
    uint8_t *map;             /* NULL: the host cannot see it */
    bool     cached;          /* the map: reading it is as fast as memory, and not a bus transfer a word */
} vk_slice;

typedef enum vk_use {
    VK_USE_DEVICE,            /* lives on the device; mapped only where all of its memory is, or a host-visible heap is large */
    VK_USE_UPLOAD,            /* the host writes, the device reads: coherent, device-local if possible */
    VK_USE_READBACK,          /* the device writes, the host reads: coherent, cached if possible */
    VK_USE_COUNT,
    VK_USE_IMPORT = VK_USE_COUNT   /* memory of the host's that the device reads where it lies */
} vk_use;

typedef struct vk_block {
    VkDeviceMemory memory;
    VkBuffer       buffer;
    uint64_t       size, used;
    uint8_t       *map;
    bool           cached;
    vk_use         use;
} vk_block;

/* What a kernel has at most. */
#define VK_BINDINGS 8    /* storage buffers; Vulkan's own minimum is 4 */
#define VK_PUSH     32   /* words of push constants: what every device has */
#define VK_SPECS    16   /* specialization constants */

/* A piece of host memory through which bytes go to the device while the host prepares the next ones. */
#define VK_STAGES 3
typedef struct vk_stage {
    vk_slice        bytes;
    VkCommandBuffer commands;
    VkFence         fence;
    bool            busy;      /* its copy may still run */
} vk_stage;

typedef struct vk_pipeline {
    uint32_t   kernel, subgroup, n_spec, spec[VK_SPECS];   /* kernel: a vk_kernel */
    VkPipeline handle;
} vk_pipeline;

typedef struct vk_device_desc {
    const char *want;         /* "auto" (best real GPU), "gpu" (best, also one that is a CPU), "gpu:N" */
    uint32_t    without;      /* VK_CAN_... not to use */
    uint64_t    vram_limit;   /* bytes to take at most; 0: the driver's budget */
    uint64_t    max_range, max_alloc;   /* lower the device's limits (tests); 0: as they are */
    bool        as_gpu;       /* choose kernels as for a real GPU, also on a device that is a CPU (tests) */
    bool        no_matrix_f16, no_matrix_s8;   /* matrix units not to use */
    const nova_vulkan *given; /* the host's device; NULL: open one. Read while opening alone */
    const void *cache;        /* of an earlier vk_cache_get */
    size_t      cache_size;
    bool        measure;      /* only count: nothing is allocated, written or submitted */
    bool        no_import;    /* never read memory of the host's where it lies */
    bool        staged;       /* never map device memory, even where it can be (tests) */
} vk_device_desc;

typedef struct vk_device {
    host             h;
    vk_api           api;
    VkInstance       instance;
    VkPhysicalDevice physical;
    VkDevice         device;
    VkQueue          queue;
    uint32_t         family;
    vk_caps          caps;
    vk_device_desc   desc;

    vk_block        *blocks;
    uint32_t         n_blocks, cap_blocks;
    uint64_t         taken;            /* bytes of the device's memory, with what the host writes into it directly ... */
    uint64_t         imported;         /* ... and with these, which are the host's */
    uint64_t         expected;         /* bytes of slices that are still to be taken, as far as known: blocks are made to fit */

    VkDescriptorSetLayout set_layout;
    VkPipelineLayout      layout;
    VkPipelineCache       cache;
    vk_pipeline          *pipelines;
    bool                  statistics;  /* pipelines keep what vk_statistics tells */
    uint32_t              n_pipelines, cap_pipelines;

    bool             borrowed;         /* instance and device are the host's */
    void           (*lock)(void *user);
    void           (*unlock)(void *user);
    void            *lock_user;

    VkCommandPool    pool;             /* of short work: uploads, tests */
    VkCommandBuffer  once;             /* of that pool */
    VkFence          fence;
    bool             busy;             /* what was submitted with it may still run */
    VkCommandPool    stage_pool;
    vk_stage         stages[VK_STAGES];
    uint32_t         next_stage;
} vk_device;

/* Asks up to `capacity` devices; *n is how many there are. Errors: DEVICE where Vulkan cannot be used, MEMORY. */
static nova_result vk_device_list(const host *h, vk_caps *out, uint32_t capacity, uint32_t *n, nova_error *error);

/* Errors: DEVICE (none fits, by name), MEMORY. */
static nova_result vk_device_open(vk_device **out, const host *h, const vk_device_desc *desc, nova_error *error);
static void        vk_device_close(vk_device *d);

/* A slice aligned to 256, contents zero for READBACK and UPLOAD, undefined for DEVICE. Sub-allocated from blocks, never given
 * back before the close. Errors: MEMORY (budget, with numbers), DEVICE. */
static uint64_t    vk_slice_bytes(uint64_t size);   /* what a slice of this size takes */
/* What slices of `total` bytes, none larger than `largest`, leave unused at most at the ends of blocks. */
static uint64_t    vk_blocks_waste(const vk_device *d, uint64_t total, uint64_t largest);
static nova_result vk_take(vk_device *d, vk_use use, uint64_t size, vk_slice *out, nova_error *error);

/* Makes memory of the host's a slice, which the device reads where it lies; its pages must stay, and as they are, until the close.
 * False: that cannot be had here, and it is to be copied. Drivers refuse pages of a file late, when they are first used: so that
 * is tried at once, and an error (DEVICE) is such a refusal, behind which the device is to be opened anew with `no_import`. */
static nova_result vk_import(vk_device *d, const void *data, uint64_t size, vk_slice *out, bool *done, nova_error *error);

/* Bytes into a slice: at once where it is mapped, else through staging, where the last copies may still run on return; what is
 * submitted later comes behind them. vk_read the other way, which waits. */
static nova_result vk_write(vk_device *d, const vk_slice *to, uint64_t offset, const void *data, uint64_t size, nova_error *error);
static nova_result vk_read(vk_device *d, const vk_slice *from, uint64_t offset, void *data, uint64_t size, nova_error *error);
static nova_result vk_fill(vk_device *d, const vk_slice *to, uint32_t word, nova_error *error);

/* The compiled pipelines as bytes, with a head that tells the driver; appended to `out`. Errors: DEVICE, MEMORY. */
static nova_result vk_cache_get(vk_device *d, text_buffer *out, nova_error *error);

/* Recording: a barrier between what was recorded and what comes behind; one copy. */
static void vk_barrier(const vk_device *d, VkCommandBuffer commands, bool host_too);
static void record_piece(const vk_device *d, VkCommandBuffer commands, const vk_slice *from, uint64_t from_at, const vk_slice *to,
                         uint64_t to_at, uint64_t size);

/* Gives recorded commands to the queue, under the host's lock. */
static VkResult vk_submit(const vk_device *d, VkCommandBuffer commands, VkFence fence);

/* Waits for what was submitted with a fence, if that may still run: *busy stays set where waiting failed, since then nothing may
 * be changed, reset or freed that the device reads. Errors: DEVICE (lost, timeout), MEMORY. */
static nova_result vk_fence_wait(const vk_device *d, VkFence fence, bool *busy, nova_error *error);
/* Submits recorded commands, when what was submitted with the fence before is done. */
static nova_result vk_submit_fence(const vk_device *d, VkCommandBuffer commands, VkFence fence, bool *busy, nova_error *error);

#endif
#endif
