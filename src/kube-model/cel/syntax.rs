//! The grammar of CEL, to say what is wrong in words that a person who writes a rule understands.

use super::names::is_reserved;
use super::tokens::{Token, Wrong, near, wrong};

type Parsed = Result<(), Wrong>;

/// What is wrong with the syntax of an expression with these tokens.
pub(super) fn check(text: &str, tokens: &[(Token, usize)]) -> Parsed {
    let mut parser = Parser { text, tokens, at: 0 };
    parser.expression()?;
    match parser.peek() {
        Token::End => Ok(()),
        _ => Err(parser.unexpected("an operator")),
    }
}

struct Parser<'a> {
    text: &'a str,
    tokens: &'a [(Token, usize)],
    at: usize,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> &'a Token {
        self.tokens.get(self.at).map_or(&Token::End, |(token, _)| token)
    }

    fn unexpected(&self, wanted: &str) -> Wrong {
        if matches!(self.peek(), Token::End) {
            return wrong(format!("the rule ends where {wanted} is expected"));
        }
        let at = self.tokens.get(self.at).map_or(self.text.len(), |(_, at)| *at);
        wrong(format!("{wanted} is expected at {}", near(&self.text[at..])))
    }

    fn takes(&mut self, symbol: &str) -> bool {
        let is_it = matches!(self.peek(), Token::Symbol(found) if *found == symbol);
        self.at += usize::from(is_it);
        is_it
    }

    fn expect(&mut self, symbol: &str) -> Parsed {
        if self.takes(symbol) { Ok(()) } else { Err(self.unexpected(&format!("`{symbol}`"))) }
    }

    fn expression(&mut self) -> Parsed {
        self.binary()?;
        if self.takes("?") {
            self.binary()?;
            self.expect(":")?;
            self.expression()?;
        }
        Ok(())
    }

    /// Operands with operators between them, all but that of conditions. What binds first makes no difference here.
    fn binary(&mut self) -> Parsed {
        const OPERATORS: [&str; 13] = ["||", "&&", "<", "<=", ">=", ">", "==", "!=", "+", "-", "*", "/", "%"];
        loop {
            self.unary()?;
            let is_in = matches!(self.peek(), Token::Word(word) if word == "in");
            self.at += usize::from(is_in);
            if !is_in && !OPERATORS.iter().any(|operator| self.takes(operator)) {
                return Ok(());
            }
        }
    }

    fn unary(&mut self) -> Parsed {
        while self.takes("!") || self.takes("-") {}
        self.primary()?;
        loop {
            if self.takes(".") {
                self.takes("?");
                if !matches!(self.peek(), Token::Word(_)) {
                    return Err(self.unexpected("a field"));
                }
                self.at += 1;
                if self.takes("(") {
                    self.list(")")?;
                }
            } else if self.takes("[") {
                self.takes("?");
                self.expression()?;
                self.expect("]")?;
            } else if self.takes("{") {
                self.list("}")?;
            } else {
                return Ok(());
            }
        }
    }

    fn primary(&mut self) -> Parsed {
        match self.peek() {
            Token::Symbol("(") => {
                self.at += 1;
                self.expression()?;
                self.expect(")")
            }
            Token::Symbol("[") => {
                self.at += 1;
                self.list("]")
            }
            Token::Symbol("{") => {
                self.at += 1;
                self.list("}")
            }
            Token::Symbol(".") if matches!(self.tokens.get(self.at + 1), Some((Token::Word(_), _))) => {
                self.at += 1;
                self.primary()
            }
            Token::Text | Token::Number => {
                self.at += 1;
                Ok(())
            }
            Token::Word(word) => {
                self.at += 1;
                if self.takes("(") {
                    self.list(")")
                } else if is_reserved(word) {
                    Err(wrong(format!("`{word}` cannot be a variable")))
                } else {
                    Ok(())
                }
            }
            Token::End | Token::Symbol(_) => Err(self.unexpected("a value")),
        }
    }

    /// Values, or pairs of values, up to a closing bracket.
    fn list(&mut self, close: &str) -> Parsed {
        while !self.takes(close) {
            self.takes("?");
            self.expression()?;
            if close == "}" {
                self.expect(":")?;
                self.expression()?;
            }
            if !self.takes(",") {
                return self.expect(close);
            }
        }
        Ok(())
    }
}
