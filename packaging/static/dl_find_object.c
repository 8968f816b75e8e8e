/* For scripts/static: GCC's unwinder, built for glibc, asks this function of glibc for the table of the frames at `pc`. In a static
 * program there is one such table, and musl tells of it by dl_iterate_phdr. Without it a panic could not unwind. */
#define _GNU_SOURCE
#include <link.h>
#include <pthread.h>
#include <stddef.h>

/* The unwinder calls these by weak names, for which a linker takes nothing out of a static library. */
__attribute__((used)) static void *const called[] = {
    pthread_once, pthread_key_create, pthread_getspecific, pthread_setspecific, pthread_mutex_lock, pthread_mutex_unlock,
};

/* As in glibc's <dlfcn.h>. */
struct dl_find_object {
    unsigned long long flags;
    void *map_start;
    void *map_end;
    struct link_map *link_map;
    void *eh_frame;
    unsigned long long reserved[7];
};

struct search {
    ElfW(Addr) pc;
    struct dl_find_object *result;
};

static int look(struct dl_phdr_info *info, size_t size, void *data) {
    struct search *search = data;
    const ElfW(Phdr) *code = NULL, *frames = NULL;
    (void)size;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[i];
        if (header->p_type == PT_LOAD && search->pc - (info->dlpi_addr + header->p_vaddr) < header->p_memsz)
            code = header;
        if (header->p_type == PT_GNU_EH_FRAME)
            frames = header;
    }
    if (code == NULL || frames == NULL)
        return 0;
    search->result->map_start = (void *)(info->dlpi_addr + code->p_vaddr);
    search->result->map_end = (void *)(info->dlpi_addr + code->p_vaddr + code->p_memsz);
    search->result->eh_frame = (void *)(info->dlpi_addr + frames->p_vaddr);
    return 1;
}

int _dl_find_object(void *pc, struct dl_find_object *result) {
    struct search search = {(ElfW(Addr))pc, result};
    *result = (struct dl_find_object){0};
    return dl_iterate_phdr(look, &search) == 1 ? 0 : -1;
}
