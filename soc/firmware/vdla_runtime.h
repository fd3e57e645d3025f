/* Runs the image of a model on a processor beside the core. Nothing is allocated, nothing printed.
 *
 *     vdla_machine machine = {registers, interrupts, invalidate};
 *     int error = vdla_open(image, &machine);
 *     (write the tensors image->inputs)
 *     if (!error) error = vdla_run(image, &machine, &cycles);
 *     (read the tensors image->outputs)
 *     puts(vdla_error_text(error));
 */
#ifndef VDLA_RUNTIME_H
#define VDLA_RUNTIME_H

#include "vdla_image.h"

typedef struct {
    volatile uint32_t *registers; /* of the core, then those of its peripheral */
    /* The interrupts of the core that have come; NULL: the core is polled. */
    uint32_t (*interrupts)(void);
    /* Lets the processor's caches forget what the core may have written; NULL: there are none. */
    void (*invalidate)(void);
} vdla_machine;

/* Errors of a core that has stopped: this and its status. */
#define VDLA_ERROR_STOPPED 0x100

enum {
    VDLA_OK,
    VDLA_ERROR_IMAGE,     /* no image, or a damaged one */
    VDLA_ERROR_VERSION,   /* an image for another runtime */
    VDLA_ERROR_CONFIG,    /* programs for a core of another configuration */
    VDLA_ERROR_INTERRUPT, /* the core has stopped, and no interrupt came */
};

/* Check an image and bring its programs to the core's memory. */
int vdla_open(const vdla_image *image, const vdla_machine *machine);

/* Run all steps. To `cycles` those are added that the core took. */
int vdla_run(const vdla_image *image, const vdla_machine *machine, uint32_t *cycles);

/* What an error means. */
const char *vdla_error_text(int error);

#endif
