#include "cli/report/page_parts.hpp"

// Defined in page_parts.s: where each file begins and ends.
extern "C" {
extern const char isobar_page_frame;
extern const char isobar_page_frame_end;
extern const char isobar_page_style;
extern const char isobar_page_style_end;
extern const char isobar_page_script;
extern const char isobar_page_script_end;
extern const char isobar_page_library;
extern const char isobar_page_library_end;
extern const char isobar_page_licence;
extern const char isobar_page_licence_end;
}

namespace isobar::cli {

results::PageParts page_parts()
{
  return {.frame = {&isobar_page_frame, &isobar_page_frame_end},
          .style = {&isobar_page_style, &isobar_page_style_end},
          .script = {&isobar_page_script, &isobar_page_script_end},
          .library = {&isobar_page_library, &isobar_page_library_end},
          .licence = {&isobar_page_licence, &isobar_page_licence_end}};
}

}  // namespace isobar::cli
