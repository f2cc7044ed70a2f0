# The kernels are compiled once per vector width. MONOMOE_ALWAYS_INLINE makes every shared inline function part of its caller there:
# a copy of its own, built for AVX-512, could be the one the linker keeps for the whole program. Optimised in every build type,
# since without inlining they are a hundred times slower. GCC 12's own AVX-512 header trips its uninitialised warnings.
set(kernel_options -DMONOMOE_ALWAYS_INLINE -O3 -fno-trapping-math)
set(avx2_options -mavx2 -mfma)
set(avx512_options -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512 -Wno-uninitialized
    $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
set_source_files_properties(src/cpu/kernels_128.cpp PROPERTIES COMPILE_OPTIONS "${kernel_options}")
set_source_files_properties(src/cpu/kernels_256.cpp PROPERTIES COMPILE_OPTIONS "${kernel_options};${avx2_options}")
set_source_files_properties(src/cpu/kernels_512.cpp PROPERTIES COMPILE_OPTIONS "${kernel_options};${avx2_options};${avx512_options}")

if(MONOMOE_TESTS)
  add_test(NAME vectors.exports COMMAND ${CMAKE_COMMAND} -DNM=${CMAKE_NM} -DARCHIVE=$<TARGET_FILE:monomoe_core>
           -P ${CMAKE_SOURCE_DIR}/cmake/check_vectors.cmake)
  set_tests_properties(vectors.exports PROPERTIES LABELS unit)
endif()
