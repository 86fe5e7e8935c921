"""What SQL targets share, whatever their dialect: how a batch is cut into phases, foreign keys in order, rejected rows by bisection."""
