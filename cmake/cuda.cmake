# The CUDA backend: decides whether it is built, and adds src/cuda to the library. Without it src/cuda/absent.cpp says that it is not there.
set(MONOMOE_CUDA AUTO CACHE STRING "CUDA backend for Hopper GPUs: AUTO (if nvcc 12.4 or newer is found), ON or OFF")
set_property(CACHE MONOMOE_CUDA PROPERTY STRINGS AUTO ON OFF)
set(monomoe_cuda_minimum 12.4)

set(MONOMOE_HAS_CUDA OFF)
set(cuda_why "MONOMOE_CUDA is OFF")
if(MONOMOE_CUDA STREQUAL "AUTO" AND (MONOMOE_SANITIZE OR MONOMOE_FUZZ))
  set(cuda_why "AUTO leaves it out of sanitizer builds: they are for host code")
elseif(NOT MONOMOE_CUDA STREQUAL "OFF")
  find_program(MONOMOE_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin $ENV{CUDA_PATH}/bin /usr/local/cuda/bin)
  if(MONOMOE_NVCC)
    execute_process(COMMAND ${MONOMOE_NVCC} --version OUTPUT_VARIABLE nvcc_text ERROR_QUIET)
    string(REGEX MATCH "release ([0-9]+\\.[0-9]+)" found "${nvcc_text}")
    if(found AND CMAKE_MATCH_1 VERSION_GREATER_EQUAL monomoe_cuda_minimum)
      set(MONOMOE_HAS_CUDA ON)
    else()
      set(cuda_why "${MONOMOE_NVCC} is release \"${CMAKE_MATCH_1}\", wanted ${monomoe_cuda_minimum} or newer")
    endif()
  else()
    set(cuda_why "no nvcc on PATH, in CUDA_HOME or in /usr/local/cuda")
  endif()
  if(NOT MONOMOE_HAS_CUDA AND MONOMOE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "MONOMOE_CUDA is ON but ${cuda_why}; install a CUDA toolkit or set -DMONOMOE_NVCC=/path/to/nvcc")
  endif()
endif()

if(NOT MONOMOE_HAS_CUDA)
  message(STATUS "CUDA backend: not built (${cuda_why})")
  target_sources(monomoe_core PRIVATE src/cuda/absent.cpp)
  return()
endif()

set(CMAKE_CUDA_COMPILER ${MONOMOE_NVCC})
set(CMAKE_CUDA_ARCHITECTURES 90a-real)  # Hopper's own instructions; nothing else could run them, so no PTX is kept
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake before 3.26 does not know that nvcc 12 has it
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()
find_package(CUDAToolkit REQUIRED)
message(STATUS "CUDA backend: ${MONOMOE_NVCC} ${CMAKE_CUDA_COMPILER_VERSION}")

# IEEE arithmetic is nvcc's default and stays: no fast math, no flushing of subnormals.
file(GLOB_RECURSE kernel_sources CONFIGURE_DEPENDS src/cuda/*.cu)
add_library(monomoe_kernels OBJECT ${kernel_sources})
target_include_directories(monomoe_kernels PRIVATE src)
target_compile_options(monomoe_kernels PRIVATE -Xptxas=-v -Xcompiler=-ffp-contract=off,-fvisibility=hidden,-Wall -Werror=all-warnings)
set_target_properties(monomoe_kernels PROPERTIES CUDA_RUNTIME_LIBRARY Static
                      UNITY_BUILD OFF CUDA_COMPILER_LAUNCHER "sh;${CMAKE_CURRENT_LIST_DIR}/nvcc_log.sh")

file(GLOB cuda_host_sources CONFIGURE_DEPENDS src/cuda/*.cpp)
list(FILTER cuda_host_sources EXCLUDE REGEX "absent.cpp$")
target_sources(monomoe_core PRIVATE ${cuda_host_sources} $<TARGET_OBJECTS:monomoe_kernels>)
set_source_files_properties(${cuda_host_sources} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
target_include_directories(monomoe_core SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
# The runtime is linked in, and it looks for the driver when it is first called: the library loads where there is none.
target_link_libraries(monomoe_core PUBLIC CUDA::cudart_static)
