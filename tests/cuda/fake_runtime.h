/* A CUDA runtime without a GPU: device memory is the host's, kernels compute nothing, and what fails is said here.
 * For the host's side of the CUDA backend. */
#ifndef LATHE_TESTS_CUDA_FAKE_RUNTIME_H
#define LATHE_TESTS_CUDA_FAKE_RUNTIME_H

#include <stdbool.h>
#include <stddef.h>

struct fake_device {
    int n_devices;
    int driver; /* 13000; 0: there is none */
    int sm;     /* 90 */
    size_t room;
    int launch;        /* cudaError_t of every launch, which goes away when it is read */
    int capture;       /* cudaError_t of every beginning of a capture */
    bool is_capturing; /* then the stream cannot be waited for */
    int copy;          /* cudaError_t of every copy, which then moves nothing */
    int event;         /* cudaError_t of every creation of an event */
    int info;          /* cudaError_t of every question for free memory */
    int replay_loses;  /* cudaError_t that the device is lost to when a graph is launched */
    int await_loses;   /* the same when an event is waited for */
    int lost;          /* cudaError_t of every call until the device is reset; 0: it works */
    int n_resets;
    int refused;          /* resets that fail first */
    int away;             /* times that the device is unavailable after a reset */
    _Atomic int n_allocs; /* of the device's memory and of pinned memory, asked for */
    _Atomic int n_events, n_events_gone; /* created, destroyed */
};
extern struct fake_device fake;

#endif
