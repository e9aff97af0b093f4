#pragma once

#include "core/base/document.hpp"

#include <cstddef>
#include <string>
#include <vector>

namespace isobar::sim {

/// A CSV file with a header line, read strictly: known columns, each at most once and in any order, and as many cells
/// in each row. Lines that begin with # are comments, empty lines are skipped, blanks around cells and CR before the
/// line's end are dropped. Quotation marks are refused.
class CsvTable {
 public:
  /// Adds each fault to `faults`, which stands for the same file; rows at fault are left out.
  CsvTable(const std::string& text, const std::vector<std::string>& required, const std::vector<std::string>& optional,
           FaultList& faults);

  struct Row {
    int line = 0;
    std::vector<std::string> cells;  ///< in the order required, optional; "" for a column that the file has not
  };

  const std::vector<Row>& rows() const { return rows_; }
  /// Without their #, in the file's order.
  const std::vector<std::string>& comments() const { return comments_; }
  /// The last line's number.
  int last_line() const { return last_line_; }

 private:
  std::vector<Row> rows_;
  std::vector<std::string> comments_;
  int last_line_ = 1;
};

}  // namespace isobar::sim
