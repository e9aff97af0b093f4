#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace isobar::exec {

/// Classes of MNLI, in the order of the labels in Hugging Face's data set GLUE: 0 entailment, 1 neutral,
/// 2 contradiction. (Google's run_classifier.py counts in the order of the alphabet.)
inline constexpr std::uint64_t mnli_classes = 3;

/// Two sentences, and what the first says of the second.
struct SentencePair {
  std::string_view premise;     ///< column sentence1
  std::string_view hypothesis;  ///< column sentence2
  std::int64_t label = 0;       ///< column gold_label
};

/// GLUE's MNLI: a line of tab-separated columns for each pair, found by the names in the first line; quotes mean
/// nothing. Pairs that those who judged them did not agree on, gold_label "-", are left out. Memory: that of the file.
/// Source: Wang et al. 2018 (arXiv 1804.07461), section 3; Williams et al. 2018 (arXiv 1704.05426), section 2.
class MnliFile {
 public:
  /// @throws InputError "file:line: …" for columns that are missing, another label, text that is no UTF-8, and a file
  /// without a pair.
  explicit MnliFile(const std::filesystem::path& file);

  std::uint64_t size() const { return pairs_.size(); }
  /// How many pairs were left out for want of a label.
  std::uint64_t unlabelled() const { return unlabelled_; }
  SentencePair pair(std::uint64_t index) const;

 private:
  /// Where a column stands in the text; a view would not outlive a move of the file.
  struct Place {
    std::uint64_t begin = 0;
    std::uint64_t length = 0;
  };
  struct Pair {
    Place premise, hypothesis;
    std::int64_t label = 0;
  };

  Place place_of(std::string_view column) const;

  std::string text_;
  std::vector<Pair> pairs_;
  std::uint64_t unlabelled_ = 0;
};

}  // namespace isobar::exec
