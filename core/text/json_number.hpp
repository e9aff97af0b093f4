#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace isobar {

/// What is wrong where a JSON parser stopped, at byte `at`, if that is a number which JSON lacks, as Python's json
/// writes it: "ts: NaN is not a number in JSON; write a finite one", without the key in a list. "" for any other fault.
std::string fault_of_json_number(std::string_view text, std::size_t at);

}  // namespace isobar
