# Finds LibTorch >= 2.6 by its headers and libraries in a folder of CMAKE_PREFIX_PATH (an unpacked libtorch, a `torch`
# wheel, or the output of torch.utils.cmake_prefix_path). Unlike the TorchConfig.cmake of a wheel built with CUDA, it does
# not need a CUDA toolkit, since the CPU libraries need none.
#
#   LibTorch::cpu    headers, libtorch_cpu, libc10
#   LibTorch_CUDA    TRUE when libc10_cuda and a CUDA toolkit of its major version exist; then
#   LibTorch::cuda   the above, libc10_cuda and the CUDA run time. libtorch_cuda is loaded when a GPU is used.
find_path(LibTorch_INCLUDE_DIR ATen/ATen.h HINTS ENV CMAKE_PREFIX_PATH
          PATH_SUFFIXES include torch/include ../../include NO_CMAKE_SYSTEM_PATH)
foreach(library torch_cpu c10 c10_cuda)
  find_library(LibTorch_${library} ${library} HINTS ${LibTorch_INCLUDE_DIR}/../lib NO_DEFAULT_PATH)
endforeach()
foreach(file torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
  if(NOT LibTorch_VERSION AND EXISTS "${LibTorch_INCLUDE_DIR}/${file}")
    file(STRINGS "${LibTorch_INCLUDE_DIR}/${file}" lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
    string(REGEX MATCHALL "[0-9]+" numbers "${lines}")
    list(JOIN numbers "." LibTorch_VERSION)
  endif()
endforeach()

# PyPI's wheels before 2.7 use the old ABI of C++ strings, which no Debian library does. A constructor with a string
# parameter shows which ABI it is.
set(reason "name its folder in CMAKE_PREFIX_PATH, or let tools/setup.sh fetch it from the torch wheel")
if(LibTorch_c10)
  file(STRINGS "${LibTorch_c10}" old_abi REGEX "_ZN3c106DeviceC[12]ERKSs" LIMIT_COUNT 1)
  if(old_abi)
    set(reason "${LibTorch_c10} is built for the old C++ ABI: take the wheel of 2.7 or later, or a libtorch whose name has cxx11-abi")
    unset(LibTorch_c10 CACHE)
  endif()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch REQUIRED_VARS LibTorch_INCLUDE_DIR LibTorch_torch_cpu LibTorch_c10
  VERSION_VAR LibTorch_VERSION REASON_FAILURE_MESSAGE "${reason}")

if(LibTorch_FOUND AND NOT TARGET LibTorch::cpu)
  cmake_path(GET LibTorch_c10 PARENT_PATH library_folder)
  add_library(LibTorch::cpu INTERFACE IMPORTED)
  # The wheel's newer fmt comes before the system's in the include path; header-only, it needs no matching library.
  target_compile_definitions(LibTorch::cpu INTERFACE FMT_HEADER_ONLY=1)
  target_include_directories(LibTorch::cpu SYSTEM INTERFACE
    "${LibTorch_INCLUDE_DIR}" "${LibTorch_INCLUDE_DIR}/torch/csrc/api/include")
  # Operators register themselves when the library is loaded, so it is linked even where no symbol is used.
  target_link_libraries(LibTorch::cpu INTERFACE -Wl,--push-state,--no-as-needed "${LibTorch_torch_cpu}"
                        "${LibTorch_c10}" -Wl,--pop-state "-Wl,-rpath,${library_folder}")

  set(LibTorch_CUDA FALSE)
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER AND LibTorch_c10_cuda)
    find_package(CUDAToolkit REQUIRED)
    file(STRINGS "${LibTorch_c10_cuda}" wanted_runtime REGEX "libcudart\\.so\\.${CUDAToolkit_VERSION_MAJOR}" LIMIT_COUNT 1)
    if(wanted_runtime)
      set(LibTorch_CUDA TRUE)
      add_library(LibTorch::cuda INTERFACE IMPORTED)
      target_link_libraries(LibTorch::cuda INTERFACE LibTorch::cpu "${LibTorch_c10_cuda}" CUDA::cudart)
    else()
      message(STATUS "LibTorch is not built for CUDA ${CUDAToolkit_VERSION_MAJOR}, the toolkit found; building for CPU")
    endif()
  endif()
endif()
mark_as_advanced(LibTorch_INCLUDE_DIR LibTorch_torch_cpu LibTorch_c10 LibTorch_c10_cuda)
