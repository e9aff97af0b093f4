# Finds plotly.js of PyPI's `plotly` wheel: in the folder PlotlyJs_ROOT (the unpacked wheel, or site-packages), else in the
# cache where tools/setup.sh puts the pinned wheel.
#
#   PlotlyJs_SCRIPT   plotly.min.js
#   PlotlyJs_LICENCE  the text of its licence
file(SHA256 ${PROJECT_SOURCE_DIR}/tools/plotly.txt pinned)
string(SUBSTRING ${pinned} 0 12 pinned)
set(caches $ENV{ISOBAR_CACHE} $ENV{XDG_CACHE_HOME}/isobar $ENV{HOME}/.cache/isobar)
list(TRANSFORM caches APPEND /plotly-${pinned})
find_file(PlotlyJs_SCRIPT plotly.min.js HINTS ${caches} PATH_SUFFIXES plotly/package_data NO_CMAKE_FIND_ROOT_PATH
          NO_SYSTEM_ENVIRONMENT_PATH NO_CMAKE_SYSTEM_PATH)
if(PlotlyJs_SCRIPT)
  cmake_path(GET PlotlyJs_SCRIPT PARENT_PATH package)
  file(GLOB licences ${package}/../../plotly-*.dist-info/licenses/LICENSE.txt ${package}/../../plotly-*.dist-info/LICENSE.txt)
  if(licences)
    list(GET licences 0 licence)
    set(PlotlyJs_LICENCE ${licence} CACHE FILEPATH "The licence of plotly.js")
  endif()
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(PlotlyJs REQUIRED_VARS PlotlyJs_SCRIPT PlotlyJs_LICENCE REASON_FAILURE_MESSAGE
  "it draws the reports of `isobar`: run `source tools/setup.sh && need_plotly`, or name the unpacked plotly wheel's folder in PlotlyJs_ROOT")
mark_as_advanced(PlotlyJs_SCRIPT PlotlyJs_LICENCE)
