use super::*;

fn q(text: &str) -> Quantity {
    Quantity::parse(text).unwrap_or_else(|| panic!("{text}"))
}

/// As a real server writes them.
#[test]
fn quantities_are_canonical() {
    for (text, wanted) in [
        ("5Gi", "5Gi"),
        ("5120Mi", "5Gi"),
        ("1024Mi", "1Gi"),
        ("0.5Gi", "512Mi"),
        ("1.5Gi", "1536Mi"),
        ("0.1Gi", "107374182400m"),
        ("0.5", "500m"),
        ("100m", "100m"),
        ("1000m", "1"),
        ("1500m", "1500m"),
        ("1e3", "1e3"),
        ("1e20", "100e18"),
        ("1E", "1E"),
        ("1k", "1k"),
        ("1024", "1024"),
        ("100000", "100k"),
        ("12345678901234567890", "12345678901234567890"),
        ("512Ki", "512Ki"),
        ("0.1Ki", "102400m"),
        ("0.0001Ki", "102400u"),
        ("0", "0"),
        ("0Gi", "0"),
        ("-2Mi", "-2Mi"),
        ("+3", "3"),
        (".5", "500m"),
        ("1.", "1"),
        ("0.0000000001", "1n"),
        ("12E6", "12e6"),
        ("8Ei", "9223372036854775807"),
    ] {
        assert_eq!(canonical(text).as_deref(), Some(wanted), "{text}");
        assert_eq!(q(text).to_string(), wanted, "{text}");
        assert_eq!(q(wanted), q(text), "{text}");
    }
    for text in
        ["", "x", "Gi", "5gi", "5 Gi", "1x", "1KiB", "1e", "1ee3", "--1", "1.2.3", "0x10", "1e999999999"]
    {
        assert_eq!((canonical(text), Quantity::parse(text)), (None, None), "{text}");
    }
    assert!(q("1Ki") > q("1k") && q("500m") == q("0.5"));
}

#[test]
fn quantities_are_recognised() {
    for text in ["1", "0.5", "500m", "1.5Gi", "1e3", "-2k", ".5", "1E", "12E+3", "100n"] {
        assert!(Quantity::saturating(text).is_some(), "{text}");
    }
    for text in ["", "Gi", "1GB", "1gi", "512mb", "1 Gi", "1.2.3", "1K", "1e", "ten"] {
        assert!(Quantity::saturating(text).is_none(), "{text}");
    }
}

#[test]
fn quantities_have_bounds() {
    for text in ["10e2147483647", "1e-2147483648", "0.1e-2147483648", "1e1001"] {
        assert_eq!((canonical(text), Quantity::saturating(text)), (None, None), "{text}");
    }
    let digits = "9".repeat(60);
    for (text, wanted) in [
        ("1e1000", "10e999"),
        ("1e30", "1e30"),
        ("9999999999999999999999999999999E", "9999999999999999999999999999999E"),
        (&*digits, &*digits),
        (&*format!("{digits}n"), &*format!("{digits}n")),
    ] {
        assert_eq!(Quantity::parse(text), None, "{text}");
        for (sign, most) in [("", MAX), ("-", -MAX)] {
            let text = format!("{sign}{text}");
            assert_eq!(Quantity::saturating(&text).map(Quantity::nanos), Some(most), "{text}");
            assert_eq!(canonical(&text), Some(format!("{sign}{wanted}")), "{text}");
        }
    }
    for text in ["8Ei", &format!("{digits}Ki")] {
        assert_eq!((q(text).nanos(), q(&format!("-{text}")).nanos()), (MAX_BINARY, -MAX_BINARY), "{text}");
    }
    assert_eq!((q("1e-1000").nanos(), q("-1e-1000").nanos()), (1, -1));
    assert!(canonical("3402823669209384634633746074317682114551e-10").is_some());
    // More digits than an integer has, after the point and with a binary unit.
    let small = format!("0.{}1", "0".repeat(60));
    assert_eq!([q(&small), q(&format!("{small}Ki"))].map(Quantity::nanos), [1, 1]);
    assert_eq!(q(&format!("1{small}Pi")).nanos(), (1_i128 << 50) * NANO * 10 + 1);
    let mut sum = Quantity::saturating("-1e26").unwrap();
    sum += sum;
    assert_eq!(sum.nanos(), -MAX);
    assert_eq!((sum.checked_add(sum), q("-18446744073709551616n").mul_int(1 << 63)), (None, None));
}

#[test]
fn arithmetic_keeps_the_notation() {
    assert_eq!(q("1Gi").checked_add(q("512Mi")).unwrap().to_string(), "1536Mi");
    assert_eq!(q("1").checked_add(-q("250m")).unwrap().to_string(), "750m");
    assert_eq!(q("1Gi").div_int(4).unwrap().to_string(), "256Mi");
    assert_eq!(q("3Gi").mul_float(0.5).unwrap().to_string(), "1536Mi");
    assert_eq!(q("1500Mi").in_unit("Gi").unwrap(), "2Gi");
    assert_eq!(q("250m").in_unit("m").unwrap(), "250m");
    assert_eq!(q("1500m").to_int(), 2);
    assert_eq!(q("-1500m").to_int(), -1);
    assert_eq!(q("1.5Ki").rounded_up().to_string(), "1536");
    assert_eq!(q("1500m").rounded_up().to_string(), "2");
    assert!(q("1").div_int(0).is_none());
}

#[test]
fn sums_keep_the_notation_of_their_first_part() {
    let cases: [(&[&str], &str); 9] = [
        (&["512Mi", "512Mi"], "1Gi"),
        (&["1Gi", "1M"], "1074741824"),
        (&["500", "1Ki"], "1524"),
        (&["0", "1Ki", "1Ki"], "2Ki"),
        (&["0.5Ki", "1.5Ki"], "2Ki"),
        (&["250m", "0.75"], "1"),
        (&["1e3", "1e3"], "2e3"),
        (&["100m", "0"], "100m"),
        (&["0"], "0"),
    ];
    for (parts, wanted) in cases {
        let mut sum = Quantity::default();
        for part in parts {
            sum += q(part);
        }
        assert_eq!(sum.to_string(), wanted, "{parts:?}");
    }
    let mut rest = Quantity::count(3);
    rest += -q("500m");
    assert_eq!(rest.to_string(), "2500m");
}
