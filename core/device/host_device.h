// TENSORCAST_HOST_DEVICE: marks a function that nvcc compiles for GPUs and the host, and other compilers
// only for the host. Private to this folder and to the test doubles of the hardware.
#pragma once

#if defined(__CUDACC__)
#define TENSORCAST_HOST_DEVICE __host__ __device__
#else
#define TENSORCAST_HOST_DEVICE
#endif
