# The CUDA backend: decides whether it is built, and adds src/cuda to the library. Without it src/cuda/absent.cpp says that it is not there, and why.
include(${CMAKE_CURRENT_LIST_DIR}/find_nvcc.cmake)
set(MONOMOE_CUDA AUTO CACHE STRING "CUDA backend for Hopper GPUs: AUTO (if nvcc ${monomoe_cuda_minimum} or newer is found), ON or OFF")
set_property(CACHE MONOMOE_CUDA PROPERTY STRINGS AUTO ON OFF)
set(MONOMOE_NVCC "" CACHE FILEPATH "nvcc to build the CUDA backend with; empty: look for one")

set(MONOMOE_HAS_CUDA OFF)
if(MONOMOE_CUDA STREQUAL "OFF")
  set(cuda_why "it was configured with -DMONOMOE_CUDA=OFF, as './run --no-cuda' does")
elseif(MONOMOE_CUDA STREQUAL "AUTO" AND (MONOMOE_SANITIZE OR MONOMOE_FUZZ))
  set(cuda_why "it is a sanitizer or fuzz build: they are for host code")
else()
  set(nvcc ${MONOMOE_NVCC})
  set(cuda_why "")
  if(NOT nvcc)
    monomoe_find_nvcc(nvcc cuda_why)
  elseif(NOT EXISTS ${nvcc})
    set(cuda_why "MONOMOE_NVCC is ${nvcc}, where no file is")
  else()
    monomoe_check_nvcc(${nvcc} version cuda_why)
  endif()
  if(NOT cuda_why)
    set(MONOMOE_HAS_CUDA ON)
    set(MONOMOE_NVCC ${nvcc} CACHE FILEPATH "nvcc to build the CUDA backend with; empty: look for one" FORCE)  # a build folder keeps its compiler
  elseif(MONOMOE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "MONOMOE_CUDA is ON but ${cuda_why}. './run build' installs a compiler; or install a CUDA toolkit, or give -DMONOMOE_NVCC=/path/to/nvcc")
  endif()
endif()

if(NOT MONOMOE_HAS_CUDA)
  message(STATUS "CUDA backend: not built (${cuda_why})")
  target_sources(monomoe_core PRIVATE src/cuda/absent.cpp)
  string(REGEX REPLACE "[\"\\;]" "'" cuda_why "${cuda_why}")  # what a definition cannot hold
  set_source_files_properties(src/cuda/absent.cpp PROPERTIES COMPILE_DEFINITIONS "MONOMOE_NO_CUDA_REASON=\"${cuda_why}\"")
  return()
endif()

set(CMAKE_CUDA_COMPILER ${nvcc})
set(CMAKE_CUDA_ARCHITECTURES 90a-real)  # Hopper's own instructions; nothing else could run them, so no PTX is kept
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake before 3.26 does not know that nvcc 12 has it
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()
# Of a project that requires 3.25, CMake 3.25's module wants nvToolsExt, which CUDA 13 no longer has.
block(PROPAGATE CUDAToolkit_INCLUDE_DIRS CUDAToolkit_BIN_DIR)
  set(CMAKE_MINIMUM_REQUIRED_VERSION 3.24)
  find_package(CUDAToolkit REQUIRED)
endblock()
if(NOT TARGET CUDA::cudart_static)
  message(FATAL_ERROR "${nvcc} has no libcudart_static.a beside it, which the library links: its toolkit is incomplete. Give another with -DMONOMOE_NVCC=/path/to/nvcc")
endif()
message(STATUS "CUDA backend: ${nvcc} ${CMAKE_CUDA_COMPILER_VERSION}")

# IEEE arithmetic is nvcc's default and stays: no fast math, no flushing of subnormals.
file(GLOB_RECURSE kernel_sources CONFIGURE_DEPENDS src/cuda/*.cu)
add_library(monomoe_kernels OBJECT ${kernel_sources})
target_include_directories(monomoe_kernels PRIVATE src)
target_compile_options(monomoe_kernels PRIVATE -Xptxas=-v -Xcompiler=-ffp-contract=off,-fvisibility=hidden,-Wall -Werror=all-warnings)
set_target_properties(monomoe_kernels PROPERTIES CUDA_RUNTIME_LIBRARY Static
                      UNITY_BUILD OFF CUDA_COMPILER_LAUNCHER "sh;${CMAKE_CURRENT_LIST_DIR}/nvcc_log.sh")

file(GLOB cuda_host_sources CONFIGURE_DEPENDS src/cuda/*.cpp src/cuda/bench/*.cpp)
list(FILTER cuda_host_sources EXCLUDE REGEX "absent.cpp$")
target_sources(monomoe_core PRIVATE ${cuda_host_sources} $<TARGET_OBJECTS:monomoe_kernels>)
set_source_files_properties(${cuda_host_sources} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
target_include_directories(monomoe_core SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
# The runtime is linked in, and it looks for the driver when it is first called: the library loads where there is none.
target_link_libraries(monomoe_core PUBLIC CUDA::cudart_static)
